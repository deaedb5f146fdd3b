package peer

import (
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	dra "kubevirt.io/kubevirt/pkg/dra/admitter"
	network "kubevirt.io/kubevirt/pkg/network/admitter"
)

// Cause is a StatusCause; its reason has the JSON name that the API server uses.
type Cause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Field   string `json:"field"`
}

// Causes converts what a rule returned.
func Causes(found []meta.StatusCause) []Cause {
	causes := make([]Cause, 0, len(found))
	for _, cause := range found {
		causes = append(causes, Cause{Reason: string(cause.Type), Message: cause.Message, Field: cause.Field})
	}
	return causes
}

// rules applies the rules for networks and those for claims to a VMI as it is, without the mutating webhook.
func rules(q *Question) (any, error) {
	config, err := q.ClusterConfig()
	if err != nil {
		return nil, err
	}
	vmi, err := q.ReadVMI()
	if err != nil {
		return nil, err
	}
	spec := field.NewPath("spec")
	return map[string]any{
		"network": Causes(network.NewValidator(spec, &vmi.Spec, config).Validate()),
		"dra":     Causes(dra.NewValidator(spec, &vmi.Spec, config).ValidateCreation()),
	}, nil
}
