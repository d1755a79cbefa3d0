// The tool of tests/support/src/naive.rs with cilium/ebpf's reader: a map is opened, and two threads hand a number to and
// fro and write it. Its input says `map` and `hand 0 N`.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/perf"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The thread stays on a CPU.
func pin(cpu int) {
	runtime.LockOSThread()
	var set [128]byte
	set[cpu/8] = 1 << (cpu % 8)
	syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, uintptr(len(set)), uintptr(unsafe.Pointer(&set)))
}

func hand(program *ebpf.Program, steps uint64) {
	var turn uint64
	var both sync.WaitGroup
	for me := 0; me < 2; me++ {
		both.Add(1)
		go func(me int) {
			defer both.Done()
			pin(me)
			for {
				now := atomic.LoadUint64(&turn)
				if now >= steps {
					return
				}
				if now%2 == uint64(me) {
					_, err := program.Run(&ebpf.RunOptions{Context: []uint64{now}})
					must(err)
					atomic.StoreUint64(&turn, now+1)
				} else {
					syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
				}
			}
		}(me)
	}
	both.Wait()
}

func main() {
	var program *ebpf.Program
	var lock sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	say := func(format string, words ...interface{}) {
		lock.Lock()
		fmt.Fprintf(out, format, words...)
		out.Flush()
		lock.Unlock()
	}
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		words := strings.Fields(input.Text())
		switch words[0] {
		case "map":
			events, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerfEventArray})
			must(err)
			program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL", Instructions: asm.Instructions{
				asm.Mov.Reg(asm.R6, asm.R1), asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
				asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMapPtr(asm.R2, events.FD()), asm.LoadImm(asm.R3, 0xffffffff, asm.DWord),
				asm.Mov.Reg(asm.R4, asm.RFP), asm.Add.Imm(asm.R4, -8), asm.Mov.Imm(asm.R5, 8), asm.FnPerfEventOutput.Call(),
				asm.Mov.Imm(asm.R0, 0), asm.Return(),
			}})
			must(err)
			reader, err := perf.NewReader(events, 1<<18)
			must(err)
			go func() {
				for {
					record, err := reader.Read()
					if err != nil {
						return
					}
					if record.LostSamples > 0 {
						say("lost 0 %d %d\n", record.CPU, record.LostSamples)
					} else {
						say("0 %d %d %d 0\n", record.CPU, len(record.RawSample), binary.LittleEndian.Uint64(record.RawSample))
					}
				}
			}()
		case "hand":
			steps, err := strconv.ParseUint(words[2], 10, 64)
			must(err)
			hand(program, steps)
		}
		say("done\n")
	}
}
