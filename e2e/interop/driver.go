package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/ptr"
)

// driverOptions are the driver's command line options. Common options have the same flags and environment variables as the
// drivers in this repository.
type driverOptions struct {
	driverName, nodeName, kubeletRoot, cdiDir, kubeconfig, podUID string
	metadata                                                      bool
	metadataVersions                                              string
	devices                                                       int
	qps                                                           float64
	contentType                                                   string
	health                                                        bool
	requests                                                      string
	attributes                                                    int
	panicFor                                                      string
}

func parseDriverOptions(args []string) (driverOptions, error) {
	var o driverOptions
	flags := flag.NewFlagSet("driver", flag.ContinueOnError)
	variable := func(name, fallback string) string {
		if value, ok := os.LookupEnv(name); ok {
			return value
		}
		return fallback
	}
	flags.StringVar(&o.driverName, "driver-name", "gpu.example.com", "the driver's name")
	flags.StringVar(&o.nodeName, "node-name", variable("NODE_NAME", ""), "the name of the node")
	flags.StringVar(&o.kubeletRoot, "kubelet-root-dir", variable("KUBELET_ROOT_DIR", "/var/lib/kubelet"), "the kubelet's directory")
	flags.StringVar(&o.cdiDir, "cdi-dir", variable("CDI_DIR", kubeletplugin.DefaultCDIDir), "the directory for CDI specs")
	flags.StringVar(&o.kubeconfig, "kubeconfig", variable("KUBECONFIG", ""), "the kubeconfig file; in-cluster configuration if empty")
	flags.StringVar(&o.podUID, "pod-uid", variable("POD_UID", ""), "the UID of the driver's pod: enables rolling updates")
	flags.BoolVar(&o.metadata, "enable-device-metadata", false, "write metadata files")
	flags.StringVar(&o.metadataVersions, "metadata-versions", "v1beta1,v1alpha1", "the versions in metadata files, in order")
	flags.IntVar(&o.devices, "devices", 2, "the number of devices")
	flags.Float64Var(&o.qps, "qps", 0, "the rate limit of requests to the API server per second: 0 is client-go's default, negative is unlimited")
	flags.StringVar(&o.contentType, "content-type", "default", "the encoding of requests to the API server: json, protobuf, or default (client-go's)")
	flags.BoolVar(&o.health, "health", false, "report all devices as healthy")
	flags.StringVar(&o.requests, "requests", "own", "the requests that prepared devices name: own, every (all requests of the claim by name) or none (which means all)")
	flags.IntVar(&o.attributes, "attributes", 0, "the number of extra attributes in each device's metadata; negative disables metadata")
	flags.StringVar(&o.panicFor, "panic-for", "", "panic when a claim with this name is prepared")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected arguments: %q", flags.Args())
	}
	return o, nil
}

func (o driverOptions) client() (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, err
	}
	if o.qps != 0 {
		config.QPS = float32(o.qps)
		config.Burst = int(2 * o.qps)
	}
	switch o.contentType {
	case "default":
	case "json":
		config.ContentType = runtime.ContentTypeJSON
	case "protobuf":
		config.ContentType = runtime.ContentTypeProtobuf
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	default:
		return nil, fmt.Errorf("--content-type must be default, json or protobuf, not %q", o.contentType)
	}
	return kubernetes.NewForConfig(config)
}

func runDriver(args []string) error {
	o, err := parseDriverOptions(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	versions, err := parseVersions(strings.Split(o.metadataVersions, ","))
	if err != nil {
		return err
	}
	client, err := o.client()
	if err != nil {
		return err
	}
	data := filepath.Join(o.kubeletRoot, "plugins", o.driverName)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	updates := make(chan os.Signal, 1)
	signal.Notify(updates, syscall.SIGUSR1)

	driver := &driver{options: o, fatal: cancel, prepared: map[types.UID]preparedClaim{}}
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(o.driverName),
		kubeletplugin.NodeName(o.nodeName),
		kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(o.kubeletRoot, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.HealthService(o.health),
	}
	if o.podUID != "" {
		options = append(options, kubeletplugin.RollingUpdate(types.UID(o.podUID)))
	}
	if o.metadata {
		options = append(options, kubeletplugin.EnableDeviceMetadata(true, versions), kubeletplugin.CDIDirectory(o.cdiDir))
	}
	helper, err := kubeletplugin.Start(ctx, driver, options...)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer helper.Stop()
	if err := helper.PublishResources(ctx, resources(o)); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !strings.Contains(cause.Error(), "signal") {
				return cause
			}
			return nil
		case <-updates:
			if err := driver.update(ctx, helper); err != nil {
				fmt.Fprintf(os.Stderr, "interop: update: %v\n", err)
			}
		}
	}
}

// driver prepares whatever is allocated, without any hardware.
type driver struct {
	options driverOptions
	fatal   context.CancelCauseFunc

	mutex    sync.Mutex
	prepared map[types.UID]preparedClaim
}

type preparedClaim struct {
	namespace, name string
	devices         []kubeletplugin.Device
}

func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		if d.options.panicFor != "" && claim.Name == d.options.panicFor {
			panic("panic requested for claim " + claim.Name)
		}
		devices, err := d.prepare(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Err: err, Devices: devices}
		if err == nil {
			d.mutex.Lock()
			d.prepared[claim.UID] = preparedClaim{claim.Namespace, claim.Name, devices}
			d.mutex.Unlock()
		}
	}
	return results, nil
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	var devices []kubeletplugin.Device
	var every []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != d.options.driverName {
			continue
		}
		attributes, err := metadataOf(result.Device, d.options.attributes)
		if err != nil {
			return nil, err
		}
		device := kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device, ShareID: result.ShareID,
		}
		if d.options.attributes >= 0 {
			device.Metadata = &kubeletplugin.DeviceMetadata{Attributes: attributes}
		}
		every = append(every, result.Request)
		devices = append(devices, device)
	}
	for index := range devices {
		switch d.options.requests {
		case "every":
			devices[index].Requests = every
		case "none":
			devices[index].Requests = nil
		}
	}
	return devices, nil
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for _, claim := range claims {
		delete(d.prepared, claim.UID)
		results[claim.UID] = nil
	}
	return results, nil
}

// update replaces the metadata of each prepared device by the attribute "updated", in each of its requests.
func (d *driver) update(ctx context.Context, helper *kubeletplugin.Helper) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for uid, claim := range d.prepared {
		byRequest := map[string][]kubeletplugin.Device{}
		for _, device := range claim.devices {
			updated := map[string]resourceapi.DeviceAttribute{"updated": {BoolValue: ptr.To(true)}}
			device.Metadata = &kubeletplugin.DeviceMetadata{Attributes: updated}
			for _, request := range device.Requests {
				byRequest[request] = append(byRequest[request], device)
			}
		}
		for request, devices := range byRequest {
			if err := helper.UpdateRequestMetadata(ctx, claim.namespace, claim.name, uid, request, devices); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *driver) HandleError(ctx context.Context, err error, msg string) {
	utilruntime.HandleErrorWithContext(ctx, err, msg)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.fatal(fmt.Errorf("%s: %w", msg, err))
	}
}

func (d *driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	var report kubeletplugin.DeviceHealthReport
	for index := range d.options.devices {
		report.Devices = append(report.Devices, kubeletplugin.DeviceHealth{
			PoolName: d.options.nodeName, DeviceName: deviceName(index), Health: kubeletplugin.HealthStatusHealthy,
		})
	}
	// The kubelet considers health older than 30 seconds unknown.
	refresh := time.NewTicker(10 * time.Second)
	defer refresh.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case reports <- report:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-refresh.C:
		}
	}
}
