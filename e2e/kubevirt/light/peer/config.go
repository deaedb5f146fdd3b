package peer

import (
	"encoding/json"
	"fmt"

	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	v1 "kubevirt.io/api/core/v1"
	virtconfig "kubevirt.io/kubevirt/pkg/virt-config"
	"kubevirt.io/kubevirt/pkg/virt-config/featuregate"
)

const (
	namespace = "kubevirt"
	// architecture of the cluster and of VMIs that name none.
	architecture = "amd64"
)

// ClusterConfig reads the question's configuration as KubeVirt reads that of its own object.
func (q *Question) ClusterConfig() (*virtconfig.ClusterConfig, error) {
	kubevirt := &v1.KubeVirt{
		// KubeVirt reads the configuration again if the resource version changes; each question has its own object.
		ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: "kubevirt", ResourceVersion: "1"},
		Status:     v1.KubeVirtStatus{Phase: v1.KubeVirtPhaseDeployed, DefaultArchitecture: architecture},
	}
	if len(q.Configuration) > 0 {
		if err := json.Unmarshal(q.Configuration, &kubevirt.Spec.Configuration); err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
	}
	definitions := informer(&extensions.CustomResourceDefinition{})
	objects := informer(&v1.KubeVirt{})
	if err := objects.GetStore().Add(kubevirt); err != nil {
		return nil, err
	}
	return virtconfig.NewClusterConfigWithCPUArch(definitions, objects, namespace, architecture)
}

// informer returns one that never runs: its store is filled by hand.
func informer(object runtime.Object) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(&cache.ListWatch{}, object, 0, cache.Indexers{})
}

// ReadVMI reads the question's VirtualMachineInstance as a Go client does.
func (q *Question) ReadVMI() (*v1.VirtualMachineInstance, error) {
	var vmi v1.VirtualMachineInstance
	if err := json.Unmarshal(q.VMI, &vmi); err != nil {
		return nil, fmt.Errorf("vmi: %w", err)
	}
	return &vmi, nil
}

// gates lists the feature gates about devices that are enabled.
func gates(q *Question) (any, error) {
	config, err := q.ClusterConfig()
	if err != nil {
		return nil, err
	}
	enabled := []string{}
	for _, gate := range []string{
		featuregate.GPUsWithDRAGate, featuregate.HostDevicesWithDRAGate, featuregate.NetworkDevicesWithDRAGate,
		featuregate.HostDevicesGate, featuregate.VGPULiveMigration, featuregate.PCINUMAAwareTopologyEnabled,
		featuregate.IOMMUFDGate, featuregate.GraceIOVirtualization,
	} {
		if featuregate.IsEnabled(gate, config.GetConfig().DeveloperConfiguration) {
			enabled = append(enabled, gate)
		}
	}
	return map[string]any{"enabled": enabled}, nil
}
