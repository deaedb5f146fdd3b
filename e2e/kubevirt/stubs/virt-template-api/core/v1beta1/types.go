// Package v1beta1 stands in for kubevirt.io/virt-template-api/core/v1beta1: the one type that KubeVirt's informers refer to.
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// VirtualMachineTemplate has no fields of its own: nobody reads one here.
type VirtualMachineTemplate struct {
	metav1.TypeMeta
	metav1.ObjectMeta
}

// DeepCopyObject makes the type a runtime.Object.
func (t *VirtualMachineTemplate) DeepCopyObject() runtime.Object {
	return &VirtualMachineTemplate{TypeMeta: t.TypeMeta, ObjectMeta: *t.ObjectMeta.DeepCopy()}
}
