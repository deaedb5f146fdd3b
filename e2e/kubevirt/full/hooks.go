package main

import (
	"encoding/xml"
	"fmt"
	"time"

	"drakkar.example/kubevirt/light/peer"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	plugin "kubevirt.io/api/plugin/v1alpha1"
	"kubevirt.io/kubevirt/pkg/hooks"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/api"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/plugins"
)

// sidecar defines a domain twice through the hook sidecar below /var/run/kubevirt-hooks, then shuts the sidecar down.
func sidecar(q *peer.Question) (any, error) {
	vmi, err := q.ReadVMI()
	if err != nil {
		return nil, err
	}
	spec, err := readDomain(q.Domain)
	if err != nil {
		return nil, err
	}
	manager := hooks.GetManager()
	if err := manager.Collect(1, 30*time.Second); err != nil {
		return nil, fmt.Errorf("collect: %w", err)
	}
	first, err := manager.OnDefineDomain(spec, vmi)
	if err != nil {
		return nil, err
	}
	// The launcher calls the hook again with what it made before, for instance after a restart of the guest.
	changed, err := readDomain(first)
	if err != nil {
		return nil, fmt.Errorf("the domain that the sidecar returned: %w", err)
	}
	second, err := manager.OnDefineDomain(changed, vmi)
	if err != nil {
		return nil, fmt.Errorf("second call: %w", err)
	}
	if err := manager.Shutdown(); err != nil {
		return nil, fmt.Errorf("shutdown: %w", err)
	}
	return []string{first, second}, nil
}

// pluginHook changes a domain twice through the plugin whose socket is named by the question, below
// /var/run/kubevirt-plugin/drakkar.
func pluginHook(q *peer.Question) (any, error) {
	vmi, err := q.ReadVMI()
	if err != nil {
		return nil, err
	}
	spec, err := readDomain(q.Domain)
	if err != nil {
		return nil, err
	}
	installed := []plugin.Plugin{{
		ObjectMeta: meta.ObjectMeta{Name: "drakkar"},
		Spec: plugin.PluginSpec{DomainHooks: []plugin.DomainHook{
			{Sidecar: &plugin.SidecarDomainHook{SocketPath: q.Socket}},
		}},
	}}
	spec, first, err := plugins.ApplyDomainHooks(installed, vmi, spec, plugin.InvocationContextBoot)
	if err != nil {
		return nil, err
	}
	_, second, err := plugins.ApplyDomainHooks(installed, vmi, spec, plugin.InvocationContextBoot)
	if err != nil {
		return nil, fmt.Errorf("second call: %w", err)
	}
	return []string{first, second}, nil
}

func readDomain(text string) (*api.DomainSpec, error) {
	spec := &api.DomainSpec{}
	if err := xml.Unmarshal([]byte(text), spec); err != nil {
		return nil, fmt.Errorf("domain: %w", err)
	}
	return spec, nil
}
