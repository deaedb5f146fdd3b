package main

import (
	"fmt"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"
)

// Devices and metadata are the same as those of the drivers in Rust that this one is compared with: bench-driver in bench,
// and the sample driver of `drakkar demo`.

func deviceName(index int) string {
	return fmt.Sprintf("gpu-%d", index)
}

// pciAddress returns a device's simulated PCI address.
func pciAddress(index int) string {
	return fmt.Sprintf("0000:%02x:%02x.0", 3+index/32, index%32)
}

// resources returns what the driver publishes: one pool named after the node, in slices of the maximum size.
func resources(o driverOptions) resourceslice.DriverResources {
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{}}}
	for index := range o.devices {
		last := &pool.Slices[len(pool.Slices)-1]
		if len(last.Devices) == resourceapi.ResourceSliceMaxDevices {
			pool.Slices = append(pool.Slices, resourceslice.Slice{})
			last = &pool.Slices[len(pool.Slices)-1]
		}
		last.Devices = append(last.Devices, resourceapi.Device{
			Name: deviceName(index),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"resource.kubernetes.io/pciBusID": {StringValue: ptr.To(pciAddress(index))},
				"model":                           {StringValue: ptr.To("LATEST-GPU-MODEL")},
				"driverVersion":                   {VersionValue: ptr.To("1.0.0")},
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				"memory": {Value: resource.MustParse("80Gi")},
			},
		})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{o.nodeName: pool}}
}

// metadataOf returns the attributes in a device's metadata, plus a number of extra ones.
func metadataOf(device string, extra int) (map[string]resourceapi.DeviceAttribute, error) {
	number, ok := strings.CutPrefix(device, "gpu-")
	index, err := strconv.Atoi(number)
	if !ok || err != nil {
		return nil, fmt.Errorf("device %s does not exist", device)
	}
	attributes := map[string]resourceapi.DeviceAttribute{
		"resource.kubernetes.io/pciBusID": {StringValue: ptr.To(pciAddress(index))},
		"index":                           {IntValue: ptr.To(int64(index))},
		"model":                           {StringValue: ptr.To("LATEST-GPU-MODEL")},
		"driverVersion":                   {VersionValue: ptr.To("1.0.0")},
	}
	for number := range max(extra, 0) {
		attributes[fmt.Sprintf("more%d", number)] = resourceapi.DeviceAttribute{BoolValue: ptr.To(true)}
	}
	return attributes, nil
}
