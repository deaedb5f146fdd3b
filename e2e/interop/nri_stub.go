//go:build nri

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

func init() {
	tagged["nri-stub"] = func(args []string) error { return runNRIStub(args, os.Stdout) }
}

// nriEvent is a line of output of `interop nri-stub`: a call of the runtime.
type nriEvent struct {
	// Event is the name of the event, or Configure, Synchronize, Shutdown or Closed.
	Event string `json:"event"`
	// Pod and Container are messages of NRI in JSON.
	Pod       json.RawMessage `json:"pod,omitempty"`
	Container json.RawMessage `json:"container,omitempty"`
	// Pods and Containers are those of Synchronize.
	Pods       []json.RawMessage `json:"pods,omitempty"`
	Containers []json.RawMessage `json:"containers,omitempty"`
	// Config, Runtime and Version are those of Configure.
	Config  string `json:"config,omitempty"`
	Runtime string `json:"runtime,omitempty"`
	Version string `json:"version,omitempty"`
}

// recorder is a plugin on containerd's own library that prints its calls.
type recorder struct {
	stub   stub.Stub
	lock   sync.Mutex
	output *json.Encoder
	quiet  bool
	env    string
	mount  string
	fail   string
	sleep  time.Duration
	// connected is set when the runtime has configured the plugin.
	connected atomic.Bool
}

// runNRIStub runs a plugin until the runtime closes its connection.
func runNRIStub(args []string, out io.Writer) error {
	plugin := &recorder{output: json.NewEncoder(out)}
	flags := flag.NewFlagSet("nri-stub", flag.ContinueOnError)
	name := flags.String("name", "recorder", "the name of the plugin")
	index := flags.String("index", "10", "the index of the plugin, two digits")
	socket := flags.String("socket", os.Getenv("NRI_SOCKET"), "the path of the runtime's socket; by default that of NRI_SOCKET, or the library's")
	flags.BoolVar(&plugin.quiet, "quiet", false, "print no events")
	flags.StringVar(&plugin.env, "env", "", "a variable to add to each container, as NAME=VALUE")
	flags.StringVar(&plugin.mount, "mount", "", "a read-only bind mount to add to each container, as SOURCE:DESTINATION")
	flags.StringVar(&plugin.fail, "fail", "", "the event to fail")
	flags.DurationVar(&plugin.sleep, "sleep", 0, "how long to sleep in RunPodSandbox")
	if err := flags.Parse(args); err != nil {
		return err
	}
	nrilog.Set(quiet{})
	closed := make(chan struct{})
	onClose := sync.OnceFunc(func() {
		plugin.print(&nriEvent{Event: "Closed"})
		close(closed)
	})
	options := []stub.Option{stub.WithOnClose(onClose)}
	if os.Getenv(api.PluginNameEnvVar) == "" {
		options = append(options, stub.WithPluginName(*name), stub.WithPluginIdx(*index))
	}
	if *socket != "" {
		options = append(options, stub.WithSocketPath(*socket))
	}
	var err error
	if plugin.stub, err = stub.New(plugin, options...); err != nil {
		return err
	}
	err = plugin.stub.Run(context.Background())
	// The library returns and reports the end of its connection at the same time, in any order.
	if plugin.connected.Load() {
		<-closed
	}
	return err
}

func (r *recorder) print(event *nriEvent) {
	if r.quiet {
		return
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	if err := r.output.Encode(event); err != nil {
		os.Exit(1)
	}
}

func messageInJSON(message proto.Message) json.RawMessage {
	text, err := protojson.Marshal(message)
	if err != nil {
		return json.RawMessage(`"` + err.Error() + `"`)
	}
	return text
}

func messagesInJSON[M proto.Message](messages []M) []json.RawMessage {
	texts := make([]json.RawMessage, 0, len(messages))
	for _, message := range messages {
		texts = append(texts, messageInJSON(message))
	}
	return texts
}

// record prints an event, and fails if it should.
func (r *recorder) record(event string, pod *api.PodSandbox, container *api.Container) error {
	line := &nriEvent{Event: event}
	if pod != nil && !r.quiet {
		line.Pod = messageInJSON(pod)
	}
	if container != nil && !r.quiet {
		line.Container = messageInJSON(container)
	}
	r.print(line)
	if r.fail == event {
		return fmt.Errorf("%s fails, as it should", event)
	}
	return nil
}

func (r *recorder) Configure(_ context.Context, config, runtime, version string) (api.EventMask, error) {
	r.connected.Store(true)
	r.print(&nriEvent{Event: "Configure", Config: config, Runtime: runtime, Version: version})
	return 0, nil
}

func (r *recorder) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	r.print(&nriEvent{Event: "Synchronize", Pods: messagesInJSON(pods), Containers: messagesInJSON(containers)})
	if r.fail == "Synchronize" {
		return nil, errors.New("Synchronize fails, as it should")
	}
	return nil, nil
}

func (r *recorder) Shutdown(context.Context) { r.print(&nriEvent{Event: "Shutdown"}) }

func (r *recorder) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	time.Sleep(r.sleep)
	return r.record("RunPodSandbox", pod, nil)
}

func (r *recorder) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return r.record("StopPodSandbox", pod, nil)
}

func (r *recorder) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return r.record("RemovePodSandbox", pod, nil)
}

func (r *recorder) CreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adjustment := &api.ContainerAdjustment{}
	if name, value, found := strings.Cut(r.env, "="); found {
		adjustment.AddEnv(name, value)
	}
	if source, destination, found := strings.Cut(r.mount, ":"); found {
		adjustment.AddMount(&api.Mount{Source: source, Destination: destination, Type: "bind", Options: []string{"rbind", "ro"}})
	}
	return adjustment, nil, r.record("CreateContainer", pod, container)
}

func (r *recorder) PostCreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return r.record("PostCreateContainer", pod, container)
}

func (r *recorder) StartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return r.record("StartContainer", pod, container)
}

func (r *recorder) PostStartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return r.record("PostStartContainer", pod, container)
}

func (r *recorder) StopContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, r.record("StopContainer", pod, container)
}

func (r *recorder) RemoveContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return r.record("RemoveContainer", pod, container)
}
