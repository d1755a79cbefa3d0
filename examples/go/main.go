// Events of a pinned BPF_MAP_TYPE_PERF_EVENT_ARRAY in order: order MAP. Each CPU's have a number of 64 bits at byte 16. Ends on Ctrl-C.
package main

// #cgo pkg-config: perfweave libbpf
// #include <bpf/bpf.h>
// #include <perfweave.h>
import "C"
import "fmt"
import "log"
import "os"
import "os/signal"
import "syscall"

func main() {
	opts, event := C.struct_pw_opts{sz: C.sizeof_struct_pw_opts, has_numbers: 1, numbers_offset: 16}, C.struct_pw_event{}
	buffer, err := C.pw_buffer__new(C.bpf_obj_get(C.CString(os.Args[1])), 262144, nil, nil, nil, &opts)
	if buffer == nil {
		log.Fatal(err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt)
	go func() { <-ended; C.pw_buffer__flush(buffer) }() // Everything written so far, then PW_FLUSHED. For any thread.
	fmt.Println("reading")
	for event.kind != C.PW_FLUSHED {
		switch got := C.pw_buffer__next(buffer, -1, &event, C.sizeof_struct_pw_event); {
		case got < 0 && got != -C.int(syscall.EINTR):
			log.Fatal(syscall.Errno(-got))
		case got == 1 && event.kind == C.PW_RECORD:
			a, b := event.data[0], event.data[1] // A record that wraps has two parts.
			fmt.Printf("record %d %d %x\n", event.cpu, event.key, append(C.GoBytes(a.data, C.int(a.size)), C.GoBytes(b.data, C.int(b.size))...))
		case got == 1 && event.kind != C.PW_FLUSHED:
			C.pw_print_notice(nil, &event) // A loss, a gap, damage: at its place, and reading goes on.
		}
	}
}
