package peer

import (
	"encoding/xml"

	"kubevirt.io/kubevirt/pkg/dra"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/api"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/device"
	hostdevices "kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/device/hostdevice/dra"
)

// Outcome is a value or an error.
type Outcome struct {
	Value string `json:"value,omitempty"`
	Error string `json:"error,omitempty"`
}

// Try makes an outcome from the two results of a call.
func Try(value string, err error) Outcome {
	if err != nil {
		return Outcome{Error: err.Error()}
	}
	return Outcome{Value: value}
}

// resolve looks one request up: its PCI address and its mdev UUID.
func resolve(q *Question) (any, error) {
	vmi, err := q.ReadVMI()
	if err != nil {
		return nil, err
	}
	claims := vmi.Spec.ResourceClaims
	return map[string]Outcome{
		"pci":  Try(dra.GetPCIAddressForClaim(q.Root, claims, q.Claim, q.Request)),
		"mdev": Try(dra.GetMDevUUIDForClaim(q.Root, claims, q.Claim, q.Request)),
	}, nil
}

// draDevices makes the host devices of the VMI's DRA host devices and DRA GPUs.
func draDevices(q *Question) (any, error) {
	vmi, err := q.ReadVMI()
	if err != nil {
		return nil, err
	}
	return map[string]Outcome{
		"hostDevices": TryXML(hostdevices.CreateDRAHostDevices(vmi, q.Root)),
		"gpus":        TryXML(hostdevices.CreateDRAGPUHostDevices(vmi, q.Root)),
	}, nil
}

// TryXML makes an outcome from host devices and an error.
func TryXML(devices []api.HostDevice, err error) Outcome {
	if err != nil {
		return Outcome{Error: err.Error()}
	}
	return Try(HostDevices(devices))
}

// HostDevices writes host devices as KubeVirt writes them in a domain.
func HostDevices(devices []api.HostDevice) (string, error) {
	element := struct {
		XMLName xml.Name         `xml:"devices"`
		Devices []api.HostDevice `xml:"hostdev"`
	}{Devices: devices}
	text, err := xml.Marshal(element)
	return string(text), err
}

// pciAddress parses the text of a PCI address.
func pciAddress(q *Question) (any, error) {
	address, err := device.NewPciAddressField(q.Text)
	if err != nil {
		return nil, err
	}
	return []string{address.Domain, address.Bus, address.Slot, address.Function}, nil
}
