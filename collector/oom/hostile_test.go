package oom_test

import (
	"strings"
	"testing"
	"time"

	"lowtide/collector/oom"
)

// A worker chooses its text, and may send many: one must not cost what a hundred plain ones do. What is allowed is some thirty
// times what it takes here.
func TestATextOfDigitsIsCheap(t *testing.T) {
	text := "CUDA out of memory. " + strings.Repeat("1", 32000)
	began := time.Now()
	for range 10 {
		if _, ok := oom.Parse(text); !ok {
			t.Fatal("not recognised")
		}
	}
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("%v for ten", took)
	}
}

// The words stand where no quantity is, and then where one is.
func TestWordsThatStandTwice(t *testing.T) {
	o, ok := oom.Parse("CUDA out of memory. Tried to allocate 2.00 GiB (is reserved by PyTorch but unallocated; already allocated; 3.00 GiB already allocated; 1.00 GiB free; 4.00 GiB reserved in total by PyTorch)")
	if !ok || o.GetAllocatedBytes() != 3<<30 || o.GetFreeBytes() != 1<<30 || o.GetReservedUnallocatedBytes() != 1<<30 {
		t.Errorf("%v", o)
	}
}

// A process chooses its name, and the kernel writes it before the pid that it killed.
func TestANameThatLooksLikeAPid(t *testing.T) {
	o, ok := oom.Parse("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=x,pid=1,uid=0,pid=4242,uid=1000")
	if !ok || o.GetVictimPid() != 4242 {
		t.Errorf("%v", o)
	}
}
