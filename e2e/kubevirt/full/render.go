package main

import (
	"strconv"

	"drakkar.example/kubevirt/light/peer"
	core "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/kubevirt/pkg/virt-api/webhooks/mutating-webhook/mutators"
	virtconfig "kubevirt.io/kubevirt/pkg/virt-config"
	"kubevirt.io/kubevirt/pkg/virt-controller/services"
)

// pod is what the launcher's pod has about devices.
type pod struct {
	ResourceClaims []core.PodResourceClaim `json:"resourceClaims"`
	// Claims, Limits and Requests are those of the container `compute`.
	Claims   []core.ResourceClaim `json:"claims"`
	Limits   core.ResourceList    `json:"limits"`
	Requests core.ResourceList    `json:"requests"`
	// Overhead is the memory overhead in bytes, and DeviceOverhead how much of it is for devices.
	Overhead       int64 `json:"overhead"`
	DeviceOverhead int64 `json:"deviceOverhead"`
	// Others has the claims of other containers.
	Others  map[string][]core.ResourceClaim `json:"others"`
	Volumes []string                        `json:"volumes"`
}

// render renders the launcher's pod of a VMI, with the defaults of the mutating webhook.
func render(q *peer.Question) (any, error) {
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
	manifest, err := launcherPod(vmi, config)
	if err != nil {
		return nil, err
	}
	compute := manifest.Spec.Containers[0]
	answer := pod{
		ResourceClaims: manifest.Spec.ResourceClaims,
		Claims:         compute.Resources.Claims,
		Limits:         compute.Resources.Limits,
		Requests:       compute.Resources.Requests,
		Others:         map[string][]core.ResourceClaim{},
	}
	for _, container := range append(manifest.Spec.InitContainers, manifest.Spec.Containers[1:]...) {
		if len(container.Resources.Claims) > 0 {
			answer.Others[container.Name] = container.Resources.Claims
		}
	}
	for _, volume := range manifest.Spec.Volumes {
		answer.Volumes = append(answer.Volumes, volume.Name)
	}
	if answer.Overhead, err = overhead(manifest); err != nil {
		return nil, err
	}
	vmi.Spec.Domain.Devices.GPUs, vmi.Spec.Domain.Devices.HostDevices = nil, nil
	vmi.Spec.Domain.Devices.Interfaces, vmi.Spec.Networks = nil, nil
	without, err := launcherPod(vmi, config)
	if err != nil {
		return nil, err
	}
	others, err := overhead(without)
	answer.DeviceOverhead = answer.Overhead - others
	return answer, err
}

func launcherPod(vmi *v1.VirtualMachineInstance, config *virtconfig.ClusterConfig) (*core.Pod, error) {
	empty := func() cache.Store { return cache.NewStore(cache.MetaNamespaceKeyFunc) }
	renderer := services.NewTemplateService(
		"launcher", 240, "/var/run/kubevirt", "/var/run/kubevirt-ephemeral-disks", "/var/run/kubevirt/container-disks",
		v1.HotplugDiskDir, "", empty(), nil, config, 107, "exporter", empty(), empty(),
	)
	return renderer.RenderLaunchManifest(vmi)
}

func overhead(manifest *core.Pod) (int64, error) {
	return strconv.ParseInt(manifest.Annotations[v1.MemoryOverheadAnnotationBytes], 10, 64)
}
