// Judges a history of operations with porcupine, a linearizability checker that
// shares no line with the project's own.
//
// The history comes on standard input, one operation a line:
//
//	key client call value invoked returned answer found
//
// call is one of search, insert, update, upsert, delete; value is what a write
// writes (0 for search and delete); invoked and returned are nanoseconds of one
// clock; answer is one of done, exists, absent, found, or - for an operation
// that never returned (returned is then ignored); found is what a search found.
// No key exists in the beginning.
//
// Exit codes: 0 linearizable, 1 not, 2 bad input, 3 undecided within the time
// limit. Standard output gets one line: the verdict and the number of operations.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

type input struct {
	key   uint64
	call  string
	value uint64
}

type output struct {
	answer string
	found  uint64
}

// state is the value under one key.
type state struct {
	present bool
	value   uint64
}

// step says whether an operation can have this answer in this state, and returns
// the state after it. A pending operation ("-") can have any answer that the state
// allows. That it possibly never took effect needs no case of its own, because it
// can take effect after everything else.
func step(before state, in input, out output) (bool, state) {
	may := func(answer string) bool { return out.answer == answer || out.answer == "-" }
	switch in.call {
	case "search":
		if !before.present {
			return may("absent"), before
		}
		return out.answer == "-" || out.answer == "found" && out.found == before.value, before
	case "insert":
		if before.present {
			return may("exists"), before
		}
		return may("done"), state{true, in.value}
	case "update":
		if !before.present {
			return may("absent"), before
		}
		return may("done"), state{true, in.value}
	case "upsert":
		return may("done"), state{true, in.value}
	case "delete":
		if !before.present {
			return may("absent"), before
		}
		return may("done"), state{}
	}
	return false, before
}

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[uint64][]porcupine.Operation{}
		for _, operation := range history {
			key := operation.Input.(input).key
			byKey[key] = append(byKey[key], operation)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() interface{} { return state{} },
	Step: func(before, in, out interface{}) (bool, interface{}) {
		return wrap(step(before.(state), in.(input), out.(output)))
	},
}

func wrap(ok bool, after state) (bool, interface{}) { return ok, after }

func read() ([]porcupine.Operation, error) {
	var history []porcupine.Operation
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var in input
		var out output
		var client int
		var invoked, returned int64
		_, err := fmt.Sscan(lines.Text(), &in.key, &client, &in.call, &in.value, &invoked,
			&returned, &out.answer, &out.found)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", len(history)+1, err)
		}
		switch in.call {
		case "search", "insert", "update", "upsert", "delete":
		default:
			return nil, fmt.Errorf("line %d: no such call: %s", len(history)+1, in.call)
		}
		if out.answer == "-" {
			returned = math.MaxInt64
		}
		history = append(history, porcupine.Operation{
			ClientId: client, Input: in, Call: invoked, Output: out, Return: returned,
		})
	}
	return history, lines.Err()
}

func main() {
	limit := flag.Duration("limit", 5*time.Minute, "give up after this time")
	flag.Parse()
	history, err := read()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bad history:", err)
		os.Exit(2)
	}
	result := porcupine.CheckOperationsTimeout(model, history, *limit)
	fmt.Printf("%v %d operations\n", result, len(history))
	switch result {
	case porcupine.Illegal:
		os.Exit(1)
	case porcupine.Unknown:
		os.Exit(3)
	}
}
