// Command nri08 is the part of interop that is about NRI, on the library of NRI 0.8, whose pod events are state changes.
//
//	nri08 nri-runtime --socket PATH   play a runtime; reads and writes lines of JSON as interop does
//	nri08 nri-stub --socket PATH      run a plugin that prints its calls
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

func main() {
	logrus.SetLevel(logrus.WarnLevel)
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "nri08: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("no command: use nri-runtime or nri-stub")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	socket := flags.String("socket", os.Getenv("NRI_SOCKET"), "the path of the socket; by default that of NRI_SOCKET")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "nri-runtime":
		return runRuntime(*socket)
	case "nri-stub":
		return runStub(*socket)
	default:
		return fmt.Errorf("unknown command %q: use nri-runtime or nri-stub", args[0])
	}
}

// line is a line of input or output.
type line struct {
	Event     string          `json:"event"`
	Error     string          `json:"error,omitempty"`
	Pod       json.RawMessage `json:"pod,omitempty"`
	Container json.RawMessage `json:"container,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
}

// runRuntime plays a runtime on the library.
func runRuntime(socket string) error {
	synchronize := func(ctx context.Context, with adaptation.SyncCB) error {
		_, err := with(ctx, nil, nil)
		return err
	}
	update := func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
		return nil, nil
	}
	none := filepath.Join(filepath.Dir(socket), "none")
	relay, err := adaptation.New("interop", "v1.0.0", synchronize, update, adaptation.WithSocketPath(socket),
		adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none))
	if err != nil {
		return err
	}
	if err := relay.Start(); err != nil {
		return err
	}
	encoder := json.NewEncoder(os.Stdout)
	if err := encoder.Encode(line{Event: "listening"}); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var command line
		if err := json.Unmarshal(lines.Bytes(), &command); err != nil {
			return err
		}
		reply := line{Event: command.Event}
		result, err := relayEvent(relay, &command)
		if err != nil {
			reply.Error = err.Error()
		} else if result != nil {
			if reply.Result, err = protojson.Marshal(result); err != nil {
				return err
			}
		}
		if err := encoder.Encode(reply); err != nil {
			return err
		}
	}
	return lines.Err()
}

func relayEvent(relay *adaptation.Adaptation, command *line) (proto.Message, error) {
	pod, container := &api.PodSandbox{}, &api.Container{}
	for text, message := range map[*json.RawMessage]proto.Message{&command.Pod: pod, &command.Container: container} {
		if len(*text) > 0 {
			if err := protojson.Unmarshal(*text, message); err != nil {
				return nil, err
			}
		}
	}
	ctx := context.Background()
	// Waits for a plugin that is being synchronized, as a runtime does.
	defer relay.BlockPluginSync().Unblock()
	change := &adaptation.StateChangeEvent{Pod: pod}
	switch command.Event {
	case "RunPodSandbox":
		return nil, relay.RunPodSandbox(ctx, change)
	case "StopPodSandbox":
		return nil, relay.StopPodSandbox(ctx, change)
	case "RemovePodSandbox":
		return nil, relay.RemovePodSandbox(ctx, change)
	case "CreateContainer":
		return relay.CreateContainer(ctx, &adaptation.CreateContainerRequest{Pod: pod, Container: container})
	case "StartContainer":
		change.Container = container
		return nil, relay.StartContainer(ctx, change)
	default:
		return nil, fmt.Errorf("unknown event %q", command.Event)
	}
}

// recorder is a plugin that prints its calls.
type recorder struct{ encoder *json.Encoder }

func runStub(socket string) error {
	options := []stub.Option{stub.WithPluginName("recorder08"), stub.WithPluginIdx("08")}
	if socket != "" {
		options = append(options, stub.WithSocketPath(socket))
	}
	plugin, err := stub.New(&recorder{json.NewEncoder(os.Stdout)}, options...)
	if err != nil {
		return err
	}
	return plugin.Run(context.Background())
}

func (r *recorder) record(event string, pod *api.PodSandbox) error {
	reply := line{Event: event}
	if pod != nil {
		text, err := protojson.Marshal(pod)
		if err != nil {
			return err
		}
		reply.Pod = text
	}
	return r.encoder.Encode(reply)
}

func (r *recorder) Synchronize(_ context.Context, _ []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	return nil, r.record("Synchronize", nil)
}

func (r *recorder) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return r.record("RunPodSandbox", pod)
}

func (r *recorder) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return r.record("StopPodSandbox", pod)
}

func (r *recorder) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return r.record("RemovePodSandbox", pod)
}

func (r *recorder) StartContainer(_ context.Context, pod *api.PodSandbox, _ *api.Container) error {
	return r.record("StartContainer", pod)
}
