// Package peer answers questions about a VirtualMachineInstance with KubeVirt's own code, as lines of JSON.
package peer

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
)

// Question is one line of the input. Which fields are used depends on the kind.
type Question struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
	// VMI is a VirtualMachineInstance, VM a VirtualMachine, both as a user would write them.
	VMI json.RawMessage `json:"vmi"`
	VM  json.RawMessage `json:"vm"`
	// Configuration is `spec.configuration` of the KubeVirt object: feature gates and permitted host devices.
	Configuration json.RawMessage `json:"configuration"`
	// Root is the directory that has the metadata files, in place of /var/run/kubernetes.io/dra-device-attributes.
	Root string `json:"root"`
	// Claim and Request name one request of a claim of the VMI.
	Claim   string `json:"claim"`
	Request string `json:"request"`
	// Text is a PCI address.
	Text string `json:"text"`
	// Environment has the variables that device plugins set in the launcher's container.
	Environment map[string]string `json:"environment"`
	// Resources have addresses in the environment; Pops are names of them, in the order in which addresses are taken.
	Resources []string `json:"resources"`
	Pops      []string `json:"pops"`
	// Prefix is the first part of the names of those variables.
	Prefix string `json:"prefix"`
	// Sysfs is a directory in place of /sys.
	Sysfs string `json:"sysfs"`
	// Domain is a domain document.
	Domain string `json:"domain"`
	// Strict makes a device that cannot be placed an error.
	Strict bool `json:"strict"`
	// Socket is the socket of a plugin.
	Socket string `json:"socket"`
}

// Answer is one line of the output: exactly one of the last three fields is set.
type Answer struct {
	ID     string `json:"id"`
	Answer any    `json:"answer,omitempty"`
	// Error is an error that KubeVirt returned, and Panic one that it did not catch.
	Error string `json:"error,omitempty"`
	Panic string `json:"panic,omitempty"`
}

// Kind answers one kind of question.
type Kind func(*Question) (any, error)

// Kinds returns what this module can answer.
func Kinds() map[string]Kind {
	return map[string]Kind{
		"gates":       gates,
		"rules":       rules,
		"resolve":     resolve,
		"dra-devices": draDevices,
		"pci":         pciAddress,
	}
}

// Serve answers the questions of standard input until it ends.
func Serve(kinds map[string]Kind) {
	if err := serve(os.Stdin, os.Stdout, kinds); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(input io.Reader, output io.Writer, kinds map[string]Kind) error {
	lines := json.NewDecoder(bufio.NewReader(input))
	buffered := bufio.NewWriter(output)
	encoder := json.NewEncoder(buffered)
	encoder.SetEscapeHTML(false)
	for {
		var question Question
		if err := lines.Decode(&question); err == io.EOF {
			return buffered.Flush()
		} else if err != nil {
			return fmt.Errorf("a question that is no JSON of the expected form: %w", err)
		}
		kind, known := kinds[question.Kind]
		if !known {
			return fmt.Errorf("question %s: unknown kind %q", question.ID, question.Kind)
		}
		if err := encoder.Encode(answer(&question, kind)); err != nil {
			return err
		}
	}
}

func answer(question *Question, kind Kind) (result Answer) {
	result.ID = question.ID
	defer func() {
		if reason := recover(); reason != nil {
			result.Answer, result.Panic = nil, fmt.Sprint(reason)
			fmt.Fprintf(os.Stderr, "question %s: %v\n%s", question.ID, reason, debug.Stack())
		}
	}()
	found, err := kind(question)
	if err != nil {
		result.Error = err.Error()
	} else {
		result.Answer = found
	}
	return result
}
