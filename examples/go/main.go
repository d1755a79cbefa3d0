// Events of a pinned BPF_MAP_TYPE_PERF_EVENT_ARRAY in order: order MAP [OFFSET of a 32-bit counter of each CPU]. Ends on Ctrl-C.
package main

/*
#cgo pkg-config: perfweave libbpf
#include <stdlib.h>
#include <bpf/bpf.h>
#include <perfweave.h>
*/
import "C"

import (
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"unsafe"
)

func main() {
	opts := C.struct_pw_opts{sz: C.sizeof_struct_pw_opts}
	if len(os.Args) > 2 {
		offset, _ := strconv.Atoi(os.Args[2])
		opts.numbers_bits, opts.numbers_offset = 32, C.size_t(offset)
	}
	buffer, err := C.pw_buffer__new(C.bpf_obj_get(C.CString(os.Args[1])), 262144, nil, nil, nil, &opts)
	if buffer == nil {
		log.Fatal(err)
	}
	defer C.pw_buffer__free(buffer)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt)
	// Everything written so far, then PW_FLUSHED. A flush is for any thread.
	go func() { <-ended; C.pw_buffer__flush(buffer) }()

	fmt.Println("reading")
	var event C.struct_pw_event
	for {
		got := C.pw_buffer__next(buffer, -1, &event, C.sizeof_struct_pw_event)
		switch {
		case got < 0 && got != -C.int(syscall.EINTR):
			log.Fatal(syscall.Errno(-got))
		case got <= 0:
		case event.kind == C.PW_FLUSHED:
			return
		case event.kind == C.PW_RECORD:
			data := append(C.GoBytes(unsafe.Pointer(event.data[0].data), C.int(event.data[0].size)), C.GoBytes(event.data[1].data, C.int(event.data[1].size))...)
			fmt.Printf("record %d %d %x\n", event.cpu, event.key, data)
		default:
			// A loss, a gap, damage: at its place, and reading goes on.
			C.pw_print_notice(nil, &event)
		}
	}
}
