package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"io"
	"math"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"sigs.k8s.io/randfill"
)

var orders = [][]string{{"v1alpha1"}, {"v1beta1"}, {"v1beta1", "v1alpha1"}, {"v1alpha1", "v1beta1"}}

// generated is a random object, and the file that the library writes for it.
type generated struct {
	Versions []string        `json:"versions"`
	Object   json.RawMessage `json:"object"`
	File     []byte          `json:"file"`
}

// generate makes random objects of the library's own types, independently of ours, in every order of versions.
func generate(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("generate", flag.ContinueOnError)
	seed := flags.Int64("seed", 1, "the same seed gives the same objects")
	count := flags.Int("count", 1000, "the number of objects in each order of versions")
	if err := flags.Parse(args); err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(out, 1<<20)
	lines := json.NewEncoder(buffered)
	for _, versions := range orders {
		filler := randfill.NewWithSeed(*seed).NilChance(0.3).NumElements(0, 4).Funcs(fillTime, fillFields, fillInt, fillAttribute)
		for range *count {
			var dm metadata.DeviceMetadata
			filler.Fill(&dm)
			dm.TypeMeta = metav1.TypeMeta{}
			object, err := objectOf(&dm)
			if err != nil {
				return err
			}
			file, err := stream(&dm, versions)
			if err != nil {
				return err
			}
			if err := lines.Encode(generated{Versions: versions, Object: object, File: file}); err != nil {
				return err
			}
		}
	}
	return buffered.Flush()
}

// fillTime makes times that RFC 3339 can represent, in whole seconds as in the API.
func fillTime(t *metav1.Time, c randfill.Continue) {
	first, last := time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	t.Time = time.Unix(first.Unix()+c.Int63n(last.Unix()-first.Unix()), 0).UTC()
}

// fillFields makes field sets, which are JSON that is written verbatim.
func fillFields(f *metav1.FieldsV1, c randfill.Continue) {
	texts := []string{`{}`, `{"f:metadata":{"f:labels":{".":{},"f:a<b>&c":{}}}}`, `[1, 2.50e3, "\u2028", {"k" : [ ]}]`}
	f.SetRawString(texts[c.Intn(len(texts))])
}

// fillInt prefers edge cases such as the largest and smallest numbers.
func fillInt(n *int64, c randfill.Continue) {
	*n = []int64{0, 1, -1, math.MaxInt64, math.MinInt64, 1 << 53, c.Int63(), -c.Int63()}[c.Intn(8)]
}

// fillAttribute usually sets one value, as drivers do, and sometimes any combination.
func fillAttribute(a *resourceapi.DeviceAttribute, c randfill.Continue) {
	if c.Intn(5) == 0 {
		c.FillNoCustom(a)
		return
	}
	*a = resourceapi.DeviceAttribute{}
	switch c.Intn(8) {
	case 0:
		a.IntValue = new(int64)
		c.Fill(a.IntValue)
	case 1:
		a.BoolValue = new(bool)
		c.Fill(a.BoolValue)
	case 2:
		a.StringValue = new(string)
		c.Fill(a.StringValue)
	case 3:
		a.VersionValue = new(string)
		c.Fill(a.VersionValue)
	case 4:
		c.Fill(&a.IntValues)
	case 5:
		c.Fill(&a.BoolValues)
	case 6:
		c.Fill(&a.StringValues)
	default:
		c.Fill(&a.VersionValues)
	}
}
