// Overhead times streams for the comparison with C: what the binding adds to a token.
//
//	overhead MODEL N_TOKENS
//
// For each line of standard input it generates so many tokens and prints how long that took.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"
	"runtime"
	"strconv"
	"time"

	quire "quire.dev/go"
)

func try[T any](value T, err error) T {
	must(err)
	return value
}

func must(err error) {
	if err != nil {
		log.Fatal("overhead: ", err)
	}
}

// stream returns the length of the text of n tokens.
func stream(session *quire.Session, n int64) int {
	length := 0
	options := quire.StreamOptions{MaxTokens: n, Flags: quire.StreamIgnoreEOS}
	for event, err := range session.Generate(context.Background(), &options) {
		must(err)
		length += len(event.Text)
	}
	return length
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: overhead MODEL N_TOKENS")
	}
	n := try(strconv.ParseInt(os.Args[2], 10, 64))
	r := try(quire.NewRuntime(&quire.RuntimeOptions{Threads: 1}))
	defer r.Close()
	model := try(r.LoadModel(context.Background(), os.Args[1], nil))
	session := try(model.NewSession(&quire.SessionOptions{Strategy: "full", Overflow: quire.OverflowExtrapolate}))
	must(session.FeedText("Once upon a time", 0))
	must(session.Prefill(context.Background(), 0))
	prompt, _, err := session.TokenCounts()
	must(err)
	out := json.NewEncoder(os.Stdout)
	must(out.Encode(map[string]bool{"ready": true}))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		must(session.Truncate(prompt))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begin := time.Now()
		length := stream(session, n)
		seconds := time.Since(begin).Seconds()
		runtime.ReadMemStats(&after)
		if length == 0 {
			log.Fatal("overhead: there is no text")
		}
		must(out.Encode(map[string]any{"tokens": n, "seconds": seconds,
			"allocations": float64(after.Mallocs-before.Mallocs) / float64(n)}))
	}
}
