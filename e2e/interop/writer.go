package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// frameworkWriters encodes files with the framework's own writer. The writer is not exported, so it is reached through an
// update of an existing file, on a helper without gRPC services and with files in memory.
type frameworkWriters struct {
	helpers map[string]*kubeletplugin.Helper
	// file is the file in memory that the writer reads and overwrites.
	file []byte
}

// write encodes an object with one request and devices of one driver: the framework writes no others.
func (w *frameworkWriters) write(one question) (answer, error) {
	dm, err := fromObject(one.Object)
	if err != nil {
		return answer{}, err
	}
	if len(dm.Requests) != 1 || len(dm.Requests[0].Devices) == 0 {
		return answer{}, errors.New("the framework's writer needs exactly one request, with devices")
	}
	request := dm.Requests[0]
	helper, err := w.helper(request.Devices[0].Driver, one.Versions)
	if err != nil {
		return answer{}, err
	}
	// An update takes the pod claim name from the existing file, and increments its generation.
	before := *dm
	before.Generation--
	if w.file, err = stream(&before, one.Versions); err != nil {
		return answer{}, err
	}
	devices := make([]kubeletplugin.Device, 0, len(request.Devices))
	for _, device := range request.Devices {
		devices = append(devices, prepared(request.Name, device))
	}
	if err := helper.UpdateRequestMetadata(context.Background(), dm.Namespace, dm.Name, dm.UID, request.Name, devices); err != nil {
		return answer{}, err
	}
	return answer{File: w.file}, nil
}

func prepared(request string, device metadata.Device) kubeletplugin.Device {
	about := &kubeletplugin.DeviceMetadata{NetworkData: device.NetworkData}
	if device.Attributes != nil {
		about.Attributes = make(map[string]resourceapi.DeviceAttribute, len(device.Attributes))
		for name, value := range device.Attributes {
			about.Attributes[string(name)] = value
		}
	}
	return kubeletplugin.Device{
		Requests: []string{request}, PoolName: device.Pool, DeviceName: device.Name, Metadata: about,
	}
}

func (w *frameworkWriters) helper(driver string, versions []string) (*kubeletplugin.Helper, error) {
	key := driver + " " + strings.Join(versions, ",")
	if helper, ok := w.helpers[key]; ok {
		return helper, nil
	}
	groupVersions, err := parseVersions(versions)
	if err != nil {
		return nil, err
	}
	// The framework requires a client, but does not use it here.
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		return nil, err
	}
	helper, err := kubeletplugin.Start(context.Background(), noDriver{},
		kubeletplugin.DriverName(driver), kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrationService(false), kubeletplugin.DRAService(false),
		kubeletplugin.EnableDeviceMetadata(true, groupVersions),
		kubeletplugin.MetadataFileOps(kubeletplugin.MetadataFileOperations{
			ReadFile: func(string) ([]byte, error) { return w.file, nil },
			WriteFile: func(_ string, data []byte, _ os.FileMode) error {
				w.file = append([]byte(nil), data...)
				return nil
			},
		}))
	if err != nil {
		return nil, fmt.Errorf("start the framework for %s: %w", driver, err)
	}
	if w.helpers == nil {
		w.helpers = map[string]*kubeletplugin.Helper{}
	}
	w.helpers[key] = helper
	return helper, nil
}

func (w *frameworkWriters) stop() {
	for _, helper := range w.helpers {
		helper.Stop()
	}
}

// noDriver implements the driver's interface. It is never called, since the helper has no gRPC services.
type noDriver struct{}

func (noDriver) PrepareResourceClaims(context.Context, []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	return nil, errors.New("not implemented")
}

func (noDriver) UnprepareResourceClaims(context.Context, []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	return nil, errors.New("not implemented")
}

func (noDriver) HandleError(context.Context, error, string) {}

func (noDriver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
