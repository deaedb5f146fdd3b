package main

import (
	"encoding/xml"
	"os"
	"path/filepath"

	"drakkar.example/kubevirt/light/peer"
	v1 "kubevirt.io/api/core/v1"
	cmd "kubevirt.io/kubevirt/pkg/handler-launcher-com/cmd/v1"
	"kubevirt.io/kubevirt/pkg/util/hardware"
	"kubevirt.io/kubevirt/pkg/virt-api/webhooks/mutating-webhook/mutators"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/api"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/converter"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/converter/arch"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/converter/types"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/device/hostdevice"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/device/hostdevice/dra"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/device/hostdevice/generic"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/device/hostdevice/gpu"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/device/hostdevice/sriov"
)

// hostDevices are the three lists that the launcher gives the converter.
type hostDevices struct {
	generic, gpus, networks []api.HostDevice
}

// create makes the host devices of a VMI in the order of the launcher's manager.
func create(vmi *v1.VirtualMachineInstance, root string) (created hostDevices, err error) {
	if created.networks, err = sriov.CreateDRAHostDevices(vmi, root); err != nil {
		return created, err
	}
	if created.generic, err = generic.CreateHostDevices(vmi.Spec.Domain.Devices.HostDevices); err != nil {
		return created, err
	}
	claimed, err := dra.CreateDRAHostDevices(vmi, root)
	if err != nil {
		return created, err
	}
	created.generic = append(created.generic, claimed...)
	if created.gpus, err = gpu.CreateHostDevices(vmi.Spec.Domain.Devices.GPUs); err != nil {
		return created, err
	}
	if claimed, err = dra.CreateDRAGPUHostDevices(vmi, root); err != nil {
		return created, err
	}
	created.gpus = append(created.gpus, claimed...)
	return created, nil
}

// devices makes the host devices of a VMI as it is, in the order in which the domain has them.
func devices(q *peer.Question) (any, error) {
	vmi, err := q.ReadVMI()
	if err != nil {
		return nil, err
	}
	defer setEnvironment(q.Environment)()
	created, err := create(vmi, q.Root)
	if err != nil {
		return nil, err
	}
	return peer.HostDevices(append(append(created.generic, created.gpus...), created.networks...))
}

// domain converts a VMI to a domain, with the defaults of the mutating webhook, and returns what it has about devices.
func domain(q *peer.Question) (any, error) {
	config, err := q.ClusterConfig()
	if err != nil {
		return nil, err
	}
	vmi, err := q.ReadVMI()
	if err != nil {
		return nil, err
	}
	if err := mutators.ApplyNewVMIMutations(vmi, config); err != nil {
		return nil, err
	}
	defer setEnvironment(q.Environment)()
	created, err := create(vmi, q.Root)
	if err != nil {
		return nil, err
	}
	context := &types.ConverterContext{
		Architecture:                    arch.NewConverter(vmi.Spec.Architecture),
		AllowEmulation:                  true,
		HypervisorDeviceAvailable:       true,
		VirtualMachine:                  vmi,
		SMBios:                          &cmd.SMBios{},
		GenericHostDevices:              created.generic,
		GPUHostDevices:                  created.gpus,
		SRIOVDevices:                    created.networks,
		DomainAttachmentByInterfaceName: map[string]string{},
	}
	for _, network := range vmi.Spec.Networks {
		context.DomainAttachmentByInterfaceName[network.Name] = string(v1.Tap)
	}
	converted := &api.Domain{}
	if err := converter.Convert_v1_VirtualMachineInstance_To_api_Domain(vmi, converted, context); err != nil {
		return nil, err
	}
	return deviceElements(nil, converted.Spec.Devices.HostDevices)
}

// deviceElements writes controllers and host devices as KubeVirt writes them in a domain.
func deviceElements(controllers []api.Controller, devices []api.HostDevice) (string, error) {
	element := struct {
		XMLName     xml.Name         `xml:"devices"`
		Controllers []api.Controller `xml:"controller"`
		HostDevices []api.HostDevice `xml:"hostdev"`
	}{Controllers: controllers, HostDevices: devices}
	text, err := xml.Marshal(element)
	return string(text), err
}

// numa places the host devices of a domain document by NUMA node, and returns them with the controllers added for that.
func numa(q *peer.Question) (any, error) {
	defer setSysfs(q.Sysfs)()
	spec, err := readDomain(q.Domain)
	if err != nil {
		return nil, err
	}
	present := len(spec.Devices.Controllers)
	var options []converter.PCIPlacementOption
	if q.Strict {
		options = append(options, converter.WithStrictPCINUMAPlacement())
	}
	if err := converter.PlacePCIDevicesWithNUMAAlignment(spec, options...); err != nil {
		return nil, err
	}
	return deviceElements(spec.Devices.Controllers[present:], spec.Devices.HostDevices)
}

// pool takes addresses from the pool that the environment describes.
func pool(q *peer.Question) (any, error) {
	defer setEnvironment(q.Environment)()
	addresses := hostdevice.NewAddressPool(q.Prefix, q.Resources)
	taken := []peer.Outcome{}
	for _, resource := range q.Pops {
		taken = append(taken, peer.Try(addresses.Pop(resource)))
	}
	return taken, nil
}

// setEnvironment sets variables and returns a function that removes them.
func setEnvironment(variables map[string]string) func() {
	for name, value := range variables {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	return func() {
		for name := range variables {
			_ = os.Unsetenv(name)
		}
	}
}

// setSysfs makes KubeVirt read PCI devices and NUMA nodes below another directory, and returns a function that undoes it.
func setSysfs(directory string) func() {
	devices, nodes := hardware.PciBasePath, hardware.NodeBasePath
	if directory != "" {
		hardware.PciBasePath = filepath.Join(directory, "bus/pci/devices")
		hardware.NodeBasePath = filepath.Join(directory, "bus/node/devices")
	}
	return func() { hardware.PciBasePath, hardware.NodeBasePath = devices, nodes }
}
