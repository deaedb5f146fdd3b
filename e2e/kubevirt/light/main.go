// Command light answers questions with the parts of KubeVirt that compile quickly: the rules of admission for claims and
// networks, the reader of device metadata, the host devices made from it, and the parser of PCI addresses.
//
// It reads one question per line of standard input and writes one answer per line of standard output, both JSON; see the
// package peer.
package main

import "drakkar.example/kubevirt/light/peer"

func main() {
	peer.Serve(peer.Kinds())
}
