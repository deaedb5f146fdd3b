package main

import (
	"context"
	"encoding/json"
	"fmt"

	"drakkar.example/kubevirt/light/peer"
	admission "k8s.io/api/admission/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/cache"
	v1 "kubevirt.io/api/core/v1"
	network "kubevirt.io/kubevirt/pkg/network/admitter"
	"kubevirt.io/kubevirt/pkg/virt-api/webhooks/mutating-webhook/mutators"
	"kubevirt.io/kubevirt/pkg/virt-api/webhooks/validating-webhook/admitters"
	virtconfig "kubevirt.io/kubevirt/pkg/virt-config"
)

// review is the outcome of a webhook.
type review struct {
	Allowed bool `json:"allowed"`
	// By is the webhook that rejected the VMI.
	By      string       `json:"by,omitempty"`
	Code    int32        `json:"code,omitempty"`
	Message string       `json:"message,omitempty"`
	Causes  []peer.Cause `json:"causes"`
}

// admit passes a VMI through the mutating and then through the validating webhook, as the API server does.
func admit(q *peer.Question) (any, error) {
	return admitWith(q, networks)
}

// admitOnce is the same with the rules about networks applied once: virt-api gives them to a webhook that has them already.
func admitOnce(q *peer.Question) (any, error) {
	return admitWith(q)
}

func admitWith(q *peer.Question, validators ...admitters.SpecValidator) (any, error) {
	config, err := q.ClusterConfig()
	if err != nil {
		return nil, err
	}
	mutated, response, err := mutate(q.VMI, config)
	if err != nil {
		return nil, err
	}
	if response != nil {
		return outcome("mutating", response), nil
	}
	return outcome("validating", validate(mutated, config, validators...)), nil
}

// admitUnmutated passes a VMI through the validating webhook alone.
func admitUnmutated(q *peer.Question) (any, error) {
	config, err := q.ClusterConfig()
	if err != nil {
		return nil, err
	}
	return outcome("validating", validate(q.VMI, config, networks)), nil
}

// vmRules applies the rules for a VirtualMachine's specification.
func vmRules(q *peer.Question) (any, error) {
	config, err := q.ClusterConfig()
	if err != nil {
		return nil, err
	}
	var vm v1.VirtualMachine
	if err := json.Unmarshal(q.VM, &vm); err != nil {
		return nil, fmt.Errorf("vm: %w", err)
	}
	causes := admitters.ValidateVirtualMachineSpec(field.NewPath("spec"), &vm.Spec, config, false)
	return map[string]any{"causes": peer.Causes(causes)}, nil
}

// mutate returns the VMI as the mutating webhook leaves it, or that webhook's rejection.
func mutate(vmi []byte, config *virtconfig.ClusterConfig) ([]byte, *admission.AdmissionResponse, error) {
	presets := cache.NewSharedIndexInformer(
		&cache.ListWatch{}, &v1.VirtualMachineInstancePreset{}, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
	)
	mutator := &mutators.VMIsMutator{ClusterConfig: config, VMIPresetInformer: presets}
	response := mutator.Mutate(request(vmi))
	if !response.Allowed {
		return nil, response, nil
	}
	var operations []struct {
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value"`
	}
	if err := json.Unmarshal(response.Patch, &operations); err != nil {
		return nil, nil, fmt.Errorf("patch of the mutating webhook: %w", err)
	}
	object := map[string]json.RawMessage{}
	if err := json.Unmarshal(vmi, &object); err != nil {
		return nil, nil, err
	}
	// It replaces whole members of the object and nothing below them.
	for _, operation := range operations {
		object[operation.Path[1:]] = operation.Value
	}
	mutated, err := json.Marshal(object)
	return mutated, nil, err
}

// validate asks the validating webhook.
func validate(vmi []byte, config *virtconfig.ClusterConfig, validators ...admitters.SpecValidator) *admission.AdmissionResponse {
	admitter := &admitters.VMICreateAdmitter{ClusterConfig: config, SpecValidators: validators}
	return admitter.Admit(context.Background(), request(vmi))
}

// networks is the validator that virt-api gives the webhook.
func networks(path *field.Path, spec *v1.VirtualMachineInstanceSpec, config *virtconfig.ClusterConfig) []meta.StatusCause {
	return network.Validate(path, spec, config)
}

func request(vmi []byte) *admission.AdmissionReview {
	return &admission.AdmissionReview{Request: &admission.AdmissionRequest{
		UID:       "review",
		Operation: admission.Create,
		Resource: meta.GroupVersionResource{
			Group: v1.GroupVersion.Group, Version: v1.GroupVersion.Version, Resource: "virtualmachineinstances",
		},
		Object: runtime.RawExtension{Raw: vmi},
	}}
}

func outcome(by string, response *admission.AdmissionResponse) review {
	if response.Allowed {
		return review{Allowed: true, Causes: []peer.Cause{}}
	}
	rejection := review{By: by, Code: response.Result.Code, Message: response.Result.Message, Causes: []peer.Cause{}}
	if details := response.Result.Details; details != nil {
		rejection.Causes = peer.Causes(details.Causes)
	}
	return rejection
}
