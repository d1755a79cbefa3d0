// A reader on cilium/ebpf as its documentation has it, of a map that is pinned: reader-cilium MAP PAGES.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/perf"
)

func main() {
	events, err := ebpf.LoadPinnedMap(os.Args[1], nil)
	if err != nil {
		log.Fatal(err)
	}
	pages, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	reader, err := perf.NewReader(events, pages*os.Getpagesize())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	out := bufio.NewWriter(os.Stdout)
	for {
		record, err := reader.Read()
		if err != nil {
			log.Fatal(err)
		}
		if record.LostSamples > 0 {
			fmt.Fprintf(out, "lost %d on CPU %d\n", record.LostSamples, record.CPU)
		} else if len(record.RawSample) >= 28 {
			number := func(at int) uint64 { return binary.LittleEndian.Uint64(record.RawSample[at:]) }
			fmt.Fprintf(out, "ticket %d ns %d number %d cpu %d\n", number(0), number(8), number(16), record.CPU)
		}
		out.Flush()
	}
}
