// Command interop is the other side: Kubernetes' own library for device metadata and for DRA drivers, as a program that the
// tests of this directory run.
//
//	interop decode   files on standard input -> what the library reads in them, and the files that it writes again
//	interop encode   objects -> files, by the codec of the library
//	interop write    objects -> files, by the framework's own writer
//	interop generate random objects -> objects and files
//	interop driver   a driver without hardware on the package kubeletplugin
//	interop protobuf a claim in JSON -> what an API server sends of it
//	interop quantity pairs of texts -> whether they are quantities, in canonical form, compared, added and subtracted
//	interop time     how long the library takes to decode and to encode a file
//
// The first four and quantity speak lines of JSON; see files.go and quantity.go.
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "interop: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("say what to do: decode, encode, write, generate, driver, protobuf, quantity or time")
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
		return fmt.Errorf("%q is none of decode, encode, write, generate, driver, protobuf, quantity, time", command)
	}
}
