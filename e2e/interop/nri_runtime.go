//go:build nri

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	nrilog "github.com/containerd/nri/pkg/log"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

func init() {
	tagged["nri-runtime"] = func(args []string) error { return runNRIRuntime(args, os.Stdin, os.Stdout) }
}

// nriCommand is a line of input of `interop nri-runtime`: what happens to a pod or a container.
type nriCommand struct {
	// Event is the name of an event, such as RunPodSandbox, or `measure`.
	Event string `json:"event"`
	// Pod and Container are messages of NRI in JSON.
	Pod       json.RawMessage `json:"pod"`
	Container json.RawMessage `json:"container"`
	// Count is how often `measure` runs the pod.
	Count int `json:"count"`
}

// nriReply is a line of output: the outcome of a command, or, without an event, what happened otherwise.
type nriReply struct {
	Event string `json:"event,omitempty"`
	// Error is the error that a runtime fails the pod or container with.
	Error string `json:"error,omitempty"`
	// Result is the answer of the plugins, in JSON.
	Result json.RawMessage `json:"result,omitempty"`
	// Plugins is the number of plugins that are connected and synchronized, when it changes.
	Plugins *int `json:"plugins,omitempty"`
	// Updates are the updates of containers that a plugin asked for.
	Updates []json.RawMessage `json:"updates,omitempty"`
	// Nanoseconds are how long the plugins took: once, or in each round of `measure`.
	Nanoseconds []int64 `json:"nanoseconds,omitempty"`
}

// nriRuntime plays a runtime on containerd's own library.
type nriRuntime struct {
	*adaptation.Adaptation
	replies chan nriReply
	lock    sync.Mutex
	pods    map[string]*adaptation.PodSandbox
}

// runNRIRuntime reads commands, one a line, and relays them to the plugins that connect to a socket.
func runNRIRuntime(args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("nri-runtime", flag.ContinueOnError)
	socket := flags.String("socket", "", "the path of the socket")
	plugins := flags.String("plugins", "", "the directory of plugins to launch")
	config := flags.String("plugin-config", "", "the directory of the configuration of launched plugins")
	timeout := flags.Duration("request-timeout", 2*time.Second, "the time that a plugin has to answer")
	pods := flags.Int("pods", 0, "the number of pods that exist from the beginning")
	podSize := flags.Int("pod-size", 0, "the size of an annotation of each of them, in bytes")
	name := flags.String("name", "interop", "the name of the runtime")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *socket == "" {
		return errors.New("no --socket")
	}
	directory := filepath.Dir(*socket)
	if *plugins == "" {
		*plugins = filepath.Join(directory, "none")
	}
	if *config == "" {
		*config = filepath.Join(directory, "none")
	}
	nrilog.Set(quiet{})
	adaptation.SetPluginRequestTimeout(*timeout)
	runtime := &nriRuntime{replies: make(chan nriReply, 64), pods: map[string]*adaptation.PodSandbox{}}
	annotation := make([]byte, *podSize)
	for index := range annotation {
		annotation[index] = 'x'
	}
	for index := range *pods {
		id := fmt.Sprintf("sandbox-%d", index)
		runtime.pods[id] = &adaptation.PodSandbox{
			Id: id, Name: fmt.Sprintf("pod-%d", index), Uid: fmt.Sprintf("uid-%d", index), Namespace: "default",
			Annotations: map[string]string{"filler": string(annotation)},
		}
	}
	relay, err := adaptation.New(*name, "v1.0.0", runtime.synchronize, runtime.update,
		adaptation.WithSocketPath(*socket), adaptation.WithPluginPath(*plugins),
		adaptation.WithPluginConfigPath(*config), adaptation.WithMetrics(runtime))
	if err != nil {
		return err
	}
	runtime.Adaptation = relay
	go func() {
		encoder := json.NewEncoder(out)
		for reply := range runtime.replies {
			if err := encoder.Encode(reply); err != nil {
				os.Exit(1)
			}
		}
	}()
	if err := relay.Start(); err != nil {
		return err
	}
	none := 0
	runtime.replies <- nriReply{Plugins: &none}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var command nriCommand
		if err := json.Unmarshal(lines.Bytes(), &command); err != nil {
			return fmt.Errorf("read a command: %w", err)
		}
		reply, err := runtime.run(&command)
		if err != nil {
			reply.Error = err.Error()
		}
		reply.Event = command.Event
		runtime.replies <- reply
	}
	return lines.Err()
}

func (r *nriRuntime) run(command *nriCommand) (nriReply, error) {
	pod, container := &adaptation.PodSandbox{}, &adaptation.Container{}
	for text, message := range map[*json.RawMessage]proto.Message{&command.Pod: pod, &command.Container: container} {
		if len(*text) > 0 {
			if err := protojson.Unmarshal(*text, message); err != nil {
				return nriReply{}, err
			}
		}
	}
	ctx := context.Background()
	// Waits for a plugin that is being synchronized, as a runtime does.
	defer r.BlockPluginSync().Unblock()
	var reply proto.Message
	var err error
	start := time.Now()
	switch command.Event {
	case "RunPodSandbox":
		if err = r.RunPodSandbox(ctx, &adaptation.RunPodSandboxRequest{Pod: pod}); err == nil {
			r.lock.Lock()
			r.pods[pod.Id] = pod
			r.lock.Unlock()
		} else {
			// As containerd and CRI-O undo a pod.
			_ = r.StopPodSandbox(ctx, &adaptation.StopPodSandboxRequest{Pod: pod})
			_ = r.RemovePodSandbox(ctx, &adaptation.RemovePodSandboxRequest{Pod: pod})
		}
	case "StopPodSandbox":
		err = r.StopPodSandbox(ctx, &adaptation.StopPodSandboxRequest{Pod: pod})
	case "RemovePodSandbox":
		r.lock.Lock()
		delete(r.pods, pod.Id)
		r.lock.Unlock()
		err = r.RemovePodSandbox(ctx, &adaptation.RemovePodSandboxRequest{Pod: pod})
	case "UpdatePodSandbox":
		_, err = r.UpdatePodSandbox(ctx, &adaptation.UpdatePodSandboxRequest{Pod: pod})
	case "PostUpdatePodSandbox":
		err = r.PostUpdatePodSandbox(ctx, &adaptation.PostUpdatePodSandboxRequest{Pod: pod})
	case "CreateContainer":
		reply, err = r.CreateContainer(ctx, &adaptation.CreateContainerRequest{Pod: pod, Container: container})
	case "PostCreateContainer":
		err = r.PostCreateContainer(ctx, &adaptation.PostCreateContainerRequest{Pod: pod, Container: container})
	case "StartContainer":
		err = r.StartContainer(ctx, &adaptation.StartContainerRequest{Pod: pod, Container: container})
	case "PostStartContainer":
		err = r.PostStartContainer(ctx, &adaptation.PostStartContainerRequest{Pod: pod, Container: container})
	case "UpdateContainer":
		request := &adaptation.UpdateContainerRequest{Pod: pod, Container: container, LinuxResources: &adaptation.LinuxResources{}}
		reply, err = r.UpdateContainer(ctx, request)
	case "PostUpdateContainer":
		err = r.PostUpdateContainer(ctx, &adaptation.PostUpdateContainerRequest{Pod: pod, Container: container})
	case "StopContainer":
		reply, err = r.StopContainer(ctx, &adaptation.StopContainerRequest{Pod: pod, Container: container})
	case "RemoveContainer":
		err = r.RemoveContainer(ctx, &adaptation.RemoveContainerRequest{Pod: pod, Container: container})
	case "measure":
		return r.measure(ctx, pod, command.Count)
	default:
		err = fmt.Errorf("unknown event %q", command.Event)
	}
	took := []int64{time.Since(start).Nanoseconds()}
	if err != nil || reply == nil {
		return nriReply{Nanoseconds: took}, err
	}
	result, err := protojson.Marshal(reply)
	return nriReply{Result: result, Nanoseconds: took}, err
}

// measure runs a pod again and again, and returns how long the plugins took.
func (r *nriRuntime) measure(ctx context.Context, pod *adaptation.PodSandbox, count int) (nriReply, error) {
	times := make([]int64, count)
	for index := range times {
		start := time.Now()
		if err := r.RunPodSandbox(ctx, &adaptation.RunPodSandboxRequest{Pod: pod}); err != nil {
			return nriReply{}, err
		}
		times[index] = time.Since(start).Nanoseconds()
	}
	return nriReply{Nanoseconds: times}, nil
}

func (r *nriRuntime) synchronize(ctx context.Context, with adaptation.SyncCB) error {
	r.lock.Lock()
	pods := make([]*adaptation.PodSandbox, 0, len(r.pods))
	for _, pod := range r.pods {
		pods = append(pods, pod)
	}
	r.lock.Unlock()
	_, err := with(ctx, pods, nil)
	return err
}

func (r *nriRuntime) update(_ context.Context, updates []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
	reply := nriReply{}
	for _, update := range updates {
		text, err := protojson.Marshal(update)
		if err != nil {
			return nil, err
		}
		reply.Updates = append(reply.Updates, text)
	}
	r.replies <- reply
	return updates[:len(updates)/2], nil
}

// The library's metrics, of which the number of plugins is passed on.

func (r *nriRuntime) RecordPluginInvocation(_, _ string, _ error)      {}
func (r *nriRuntime) RecordPluginLatency(_, _ string, _ time.Duration) {}
func (r *nriRuntime) RecordPluginAdjustments(_, _ string, _ *adaptation.ContainerAdjustment, _, _ int) {
}
func (r *nriRuntime) UpdatePluginCount(count int) { r.replies <- nriReply{Plugins: &count} }

// quiet logs errors only, to standard error.
type quiet struct{}

func (quiet) Debugf(context.Context, string, ...interface{}) {}
func (quiet) Infof(context.Context, string, ...interface{})  {}
func (quiet) Warnf(_ context.Context, format string, args ...interface{}) {
	fmt.Fprintf(os.Stderr, "warning: "+format+"\n", args...)
}
func (quiet) Errorf(_ context.Context, format string, args ...interface{}) {
	if strings.Contains(format, "WASM") {
		return
	}
	fmt.Fprintf(os.Stderr, "error: "+format+"\n", args...)
}
