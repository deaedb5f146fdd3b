// Command full answers questions with the parts of KubeVirt that a VirtualMachineInstance passes on its way to a domain: the
// mutating and the validating webhook, the renderer of the launcher's pod, host devices of every kind, the converter, and
// the clients of hook sidecars and plugins. It also answers the questions of the command light.
//
// It reads one question per line of standard input and writes one answer per line of standard output, both JSON; see the
// package peer. It starts in seconds, so ask it many questions per start.
package main

import "drakkar.example/kubevirt/light/peer"

func main() {
	kinds := peer.Kinds()
	kinds["admit"] = admit
	kinds["admit-once"] = admitOnce
	kinds["admit-unmutated"] = admitUnmutated
	kinds["vm-rules"] = vmRules
	kinds["render"] = render
	kinds["devices"] = devices
	kinds["domain"] = domain
	kinds["numa"] = numa
	kinds["pool"] = pool
	kinds["sidecar"] = sidecar
	kinds["plugin"] = pluginHook
	peer.Serve(kinds)
}
