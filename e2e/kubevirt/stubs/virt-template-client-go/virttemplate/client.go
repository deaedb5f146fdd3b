// Package virttemplate stands in for kubevirt.io/virt-template-client-go/virttemplate, which cannot be downloaded: the calls
// that KubeVirt's informers compile against. Nothing here runs.
package virttemplate

import (
	"errors"

	"k8s.io/client-go/rest"
)

// Clientset is a client that cannot be made.
type Clientset struct{}

// NewForConfig always fails.
func NewForConfig(*rest.Config) (*Clientset, error) {
	return nil, errors.New("no client for VirtualMachineTemplates in this program")
}

// TemplateV1beta1 returns the client of one version.
func (c *Clientset) TemplateV1beta1() *V1beta1 { return &V1beta1{} }

// V1beta1 is the client of one version.
type V1beta1 struct{}

// RESTClient returns no client.
func (c *V1beta1) RESTClient() rest.Interface { return nil }
