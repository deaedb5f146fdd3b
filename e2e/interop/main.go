// Command interop gives the tests of this directory access to Kubernetes' Go library for device metadata and DRA drivers.
//
//	interop decode   decode files, and encode what was decoded
//	interop encode   encode objects with the library's codec
//	interop write    encode objects with the framework's own writer
//	interop generate generate random objects and encode them
//	interop driver   run a driver without hardware on the package kubeletplugin
//	interop protobuf convert a claim from JSON to protobuf, as an API server sends it
//	interop quantity parse pairs of quantities, compare, add and subtract them
//	interop time     measure decoding and encoding of a file
//	interop nri-runtime  play a runtime on containerd's library for NRI; needs the build tag nri
//	interop nri-stub     run a plugin on containerd's library for NRI; needs the build tag nri
//
// The first four and quantity read and write lines of JSON; see files.go and quantity.go.
package main

import (
	"errors"
	"fmt"
	"os"
)

// tagged has the commands that are only there with a build tag, so that the driver is not measured with what it does not need.
var tagged = map[string]func(args []string) error{}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "interop: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("no command: use decode, encode, write, generate, driver, protobuf, quantity, time, nri-runtime or nri-stub")
	}
	switch command, rest := args[0], args[1:]; command {
	case "decode":
		return eachLine(os.Stdin, os.Stdout, decode)
	case "encode":
		return eachLine(os.Stdin, os.Stdout, encode)
	case "write":
		writers := &frameworkWriters{}
		defer writers.stop()
		return eachLine(os.Stdin, os.Stdout, writers.write)
	case "generate":
		return generate(rest, os.Stdout)
	case "driver":
		return runDriver(rest)
	case "protobuf":
		return claimInProtobuf(rest)
	case "quantity":
		return quantities(os.Stdin, os.Stdout)
	case "time":
		return timeFiles(rest)
	default:
		if tagged, found := tagged[command]; found {
			return tagged(rest)
		}
		return fmt.Errorf("unknown command %q: use decode, encode, write, generate, driver, protobuf, quantity, time, nri-runtime or nri-stub", command)
	}
}
