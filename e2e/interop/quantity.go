package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/resource"
)

// pair is a line of input: two texts, which may or may not be quantities.
type pair struct {
	One   string `json:"one"`
	Other string `json:"other"`
}

// verdict is a line of output.
type verdict struct {
	// Errors are the parse errors of the texts.
	Errors [2]string `json:"errors"`
	// Texts are the quantities in canonical form.
	Texts [2]string `json:"texts"`
	// Order is how the first compares with the second: -1, 0 or 1.
	Order int `json:"order"`
	// Sum and Difference of both, in canonical form.
	Sum        string `json:"sum"`
	Difference string `json:"difference"`
}

// quantities parses pairs of texts as the API server does, and writes a verdict about each.
func quantities(in io.Reader, out io.Writer) error {
	pairs := json.NewDecoder(bufio.NewReaderSize(in, 1<<20))
	buffered := bufio.NewWriterSize(out, 1<<20)
	verdicts := json.NewEncoder(buffered)
	for {
		var one pair
		if err := pairs.Decode(&one); err == io.EOF {
			return buffered.Flush()
		} else if err != nil {
			return fmt.Errorf("read a pair: %w", err)
		}
		if err := verdicts.Encode(judge(one)); err != nil {
			return fmt.Errorf("write a verdict: %w", err)
		}
	}
}

func judge(one pair) verdict {
	var reply verdict
	var parsed [2]resource.Quantity
	for index, text := range []string{one.One, one.Other} {
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			reply.Errors[index] = err.Error()
			continue
		}
		parsed[index] = quantity
		reply.Texts[index] = quantity.String()
	}
	if reply.Errors[0] != "" || reply.Errors[1] != "" {
		return reply
	}
	sum, difference := parsed[0].DeepCopy(), parsed[0].DeepCopy()
	sum.Add(parsed[1])
	difference.Sub(parsed[1])
	reply.Order = parsed[0].Cmp(parsed[1])
	reply.Sum, reply.Difference = sum.String(), difference.String()
	return reply
}
