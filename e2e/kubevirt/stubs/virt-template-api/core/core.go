// Package core stands in for kubevirt.io/virt-template-api/core, which cannot be downloaded: the names that KubeVirt's
// informers and admitters refer to. Nothing here runs.
package core

const (
	GroupName            = "template.kubevirt.io"
	SingularResourceName = "virtualmachinetemplate"
	PluralResourceName   = "virtualmachinetemplates"
)
