package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/api/metadata/install"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

var (
	scheme = install.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

// question is a line of input, in JSON. Byte slices are base64.
type question struct {
	// File is a metadata file, for decode.
	File []byte `json:"file,omitempty"`
	// Object is a v1beta1 object, for encode and write.
	Object json.RawMessage `json:"object,omitempty"`
	// Versions are the versions of the file to write, in order.
	Versions []string `json:"versions,omitempty"`
}

// answer is a line of output.
type answer struct {
	// Error is why the question failed; no other field is set then.
	Error string `json:"error,omitempty"`
	// Version is the apiVersion of the document that was used.
	Version string `json:"version,omitempty"`
	// Object is the decoded object, converted to v1beta1.
	Object json.RawMessage `json:"object,omitempty"`
	// Invalid is the error of the library's validation, if any.
	Invalid string `json:"invalid,omitempty"`
	// File is the file that the library writes for the object.
	File []byte `json:"file,omitempty"`
}

// eachLine reads questions and writes an answer to each.
func eachLine(in io.Reader, out io.Writer, handle func(question) (answer, error)) error {
	questions := json.NewDecoder(bufio.NewReaderSize(in, 1<<20))
	buffered := bufio.NewWriterSize(out, 1<<20)
	answers := json.NewEncoder(buffered)
	for {
		var one question
		if err := questions.Decode(&one); err == io.EOF {
			return buffered.Flush()
		} else if err != nil {
			return fmt.Errorf("read a question: %w", err)
		}
		reply, err := handle(one)
		if err != nil {
			reply = answer{Error: err.Error()}
		}
		if err := answers.Encode(reply); err != nil {
			return fmt.Errorf("write an answer: %w", err)
		}
	}
}

// decode reads a file as any consumer on the library does, and encodes it again.
func decode(one question) (answer, error) {
	var dm metadata.DeviceMetadata
	var gvk schema.GroupVersionKind
	var invalid error
	err := devicemetadata.DecodeMetadataFromStream(json.NewDecoder(bytes.NewReader(one.File)), &dm,
		devicemetadata.DecodeMetadataStoreGVKResult(&gvk),
		devicemetadata.DecodeMetadataWithValidationResult(&invalid))
	if err != nil {
		return answer{}, err
	}
	reply := answer{Version: gvk.GroupVersion().String()}
	if invalid != nil {
		reply.Invalid = invalid.Error()
	}
	if reply.Object, err = objectOf(&dm); err != nil {
		return answer{}, err
	}
	reply.File, err = stream(&dm, one.Versions)
	return reply, err
}

// encode encodes any object in any versions with the library's codec.
func encode(one question) (answer, error) {
	dm, err := fromObject(one.Object)
	if err != nil {
		return answer{}, err
	}
	file, err := stream(dm, one.Versions)
	return answer{File: file}, err
}

// stream encodes an object as the framework's writer does: with the same codec, one document per version.
func stream(dm *metadata.DeviceMetadata, versions []string) ([]byte, error) {
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return nil, fmt.Errorf("the library has no serializer for %s", runtime.ContentTypeJSON)
	}
	var file bytes.Buffer
	groupVersions, err := parseVersions(versions)
	if err != nil {
		return nil, err
	}
	for _, version := range groupVersions {
		document, err := runtime.Encode(codecs.EncoderForVersion(info.PrettySerializer, version), dm)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", version, err)
		}
		file.Write(document)
		file.WriteByte('\n')
	}
	return file.Bytes(), nil
}

func parseVersions(versions []string) ([]schema.GroupVersion, error) {
	parsed := make([]schema.GroupVersion, 0, len(versions))
	for _, version := range versions {
		groupVersion := schema.GroupVersion{Group: metadata.GroupName, Version: version}
		if !scheme.IsVersionRegistered(groupVersion) {
			return nil, fmt.Errorf("%s is not a version of %s", version, metadata.GroupName)
		}
		parsed = append(parsed, groupVersion)
	}
	return parsed, nil
}

// objectOf encodes an object with encoding/json instead of the library's codec.
func objectOf(dm *metadata.DeviceMetadata) (json.RawMessage, error) {
	var versioned v1beta1.DeviceMetadata
	if err := scheme.Convert(dm, &versioned, nil); err != nil {
		return nil, err
	}
	versioned.SetGroupVersionKind(v1beta1.SchemeGroupVersion.WithKind("DeviceMetadata"))
	return json.Marshal(&versioned)
}

func fromObject(object json.RawMessage) (*metadata.DeviceMetadata, error) {
	var versioned v1beta1.DeviceMetadata
	if err := json.Unmarshal(object, &versioned); err != nil {
		return nil, fmt.Errorf("decode the object: %w", err)
	}
	var dm metadata.DeviceMetadata
	return &dm, scheme.Convert(&versioned, &dm, nil)
}
