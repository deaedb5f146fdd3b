package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

// claimInProtobuf reads a claim in JSON from a file and prints it as an API server sends it to clients that prefer protobuf.
func claimInProtobuf(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: interop protobuf FILE")
	}
	file, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var claim resourceapi.ResourceClaim
	if err := json.Unmarshal(file, &claim); err != nil {
		return err
	}
	types := runtime.NewScheme()
	if err := resourceapi.AddToScheme(types); err != nil {
		return err
	}
	return protobuf.NewSerializer(types, types).Encode(&claim, os.Stdout)
}

// timeFiles prints how many nanoseconds the library takes to decode a file, and to encode it again.
func timeFiles(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: interop time FILE TIMES")
	}
	file, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	times, err := strconv.Atoi(args[1])
	if err != nil || times < 1 {
		return fmt.Errorf("TIMES must be a positive number, not %q", args[1])
	}
	var dm metadata.DeviceMetadata
	begin := time.Now()
	for range times {
		dm = metadata.DeviceMetadata{}
		if err := devicemetadata.DecodeMetadataFromStream(json.NewDecoder(bytes.NewReader(file)), &dm); err != nil {
			return err
		}
	}
	decoded := time.Since(begin)
	begin = time.Now()
	for range times {
		if _, err := stream(&dm, []string{"v1beta1", "v1alpha1"}); err != nil {
			return err
		}
	}
	encoded := time.Since(begin)
	fmt.Println(decoded.Nanoseconds()/int64(times), encoded.Nanoseconds()/int64(times))
	return nil
}
