// The oracle says whether Kubernetes' own allocator of claims could have made the allocation of a claim.
//
// It reads a question from each line of standard input, and writes an answer to a line of standard output. For each
// request of the claim, the allocator gets only the devices that the request got, and what the other claims and the
// earlier requests of the claim consume of them. It must take just these devices, and consume the same of each.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
)

// question has the slices and claims of one node. Claims are allocated; Claim is the one in question.
type question struct {
	Node    string
	Slices  []*resourceapi.ResourceSlice
	Classes classes
	Claims  []*resourceapi.ResourceClaim
	Claim   *resourceapi.ResourceClaim
}

// answer has no Objection if the allocator could have made the allocation.
type answer struct {
	Objection string `json:"objection"`
}

// features are those that kube-scheduler of 1.36 and later has by default.
var features = structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true,
	DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true}

// expressions keeps compiled selectors from one question to the next.
var expressions = cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})

type classes []*resourceapi.DeviceClass

func (all classes) List() ([]*resourceapi.DeviceClass, error) { return all, nil }

func (all classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range all {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("no DeviceClass %s", name)
}

func main() {
	klog.SetLogger(klog.Logger{}) // the answer is all there is to say
	lines := bufio.NewReader(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked question
		objection := ""
		if err := json.Unmarshal(line, &asked); err != nil {
			objection = "unreadable question: " + err.Error()
		} else {
			objection = judge(asked)
		}
		if err := answers.Encode(answer{objection}); err != nil {
			return
		}
	}
}

// judge returns why the allocator could not have made the allocation; empty if it could.
func judge(asked question) string {
	allocation := asked.Claim.Status.Allocation
	if allocation == nil {
		return "the claim is not allocated"
	}
	if allocation.AllocationTimestamp == nil {
		return "allocationTimestamp is not set"
	}
	if len(asked.Claim.Spec.Devices.Constraints) > 0 {
		return "constraints concern several requests, which are judged one by one"
	}
	state := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection()}
	for _, claim := range asked.Claims {
		for _, result := range claim.Status.Allocation.Devices.Results {
			consume(state, result)
		}
	}
	judged := 0
	for _, request := range asked.Claim.Spec.Devices.Requests {
		var results []resourceapi.DeviceRequestAllocationResult
		for _, result := range allocation.Devices.Results {
			if base, _, _ := strings.Cut(result.Request, "/"); base == request.Name {
				results = append(results, result)
			}
		}
		if objection := judgeRequest(asked, request, results, state); objection != "" {
			return fmt.Sprintf("request %s: %s", request.Name, objection)
		}
		for _, result := range results {
			if result.ShareID == nil && len(result.ConsumedCapacity) > 0 {
				return fmt.Sprintf("request %s: no shareID", request.Name)
			}
			if id := structured.MakeSharedDeviceID(deviceOf(result), result.ShareID); result.ShareID != nil && state.AllocatedSharedDeviceIDs.Has(id) {
				return fmt.Sprintf("request %s: shareID %s is in use", request.Name, *result.ShareID)
			}
			consume(state, result)
		}
		judged += len(results)
	}
	if judged != len(allocation.Devices.Results) {
		return "there are results for requests that the claim does not have"
	}
	return ""
}

// judgeRequest lets the allocator allocate request from the devices of results.
func judgeRequest(asked question, request resourceapi.DeviceRequest,
	results []resourceapi.DeviceRequestAllocationResult, state structured.AllocatedState) string {
	chosen := state.AllocatedDevices.Clone() // nobody else gets them, and they consume counters
	for _, result := range results {
		chosen.Insert(deviceOf(result))
	}
	ctx := context.Background()
	allocator, err := structured.NewAllocator(ctx, features, state, asked.Classes, only(asked.Slices, chosen), expressions)
	if err != nil {
		return err.Error()
	}
	claim := asked.Claim.DeepCopy()
	claim.Status = resourceapi.ResourceClaimStatus{}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{*request.DeepCopy()}
	asking := &claim.Spec.Devices.Requests[0]
	if asking.Exactly != nil && asking.Exactly.AllocationMode == "" { // the API server sets the default
		asking.Exactly.AllocationMode = resourceapi.DeviceAllocationModeExactCount
	}
	for i := range asking.FirstAvailable {
		if asking.FirstAvailable[i].AllocationMode == "" {
			asking.FirstAvailable[i].AllocationMode = resourceapi.DeviceAllocationModeExactCount
		}
	}
	node := &v1.Node{}
	node.Name = asked.Node
	node.Labels = map[string]string{v1.LabelHostname: asked.Node}
	made, err := allocator.Allocate(ctx, node, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		return err.Error()
	}
	if len(made) != 1 {
		return "does not fit"
	}
	ours, theirs := comparable(results), comparable(made[0].Devices.Results)
	if !equality.Semantic.DeepEqual(ours, theirs) {
		return fmt.Sprintf("the allocation differs: %s, expected %s", text(ours), text(theirs))
	}
	if !equality.Semantic.DeepEqual(asked.Claim.Status.Allocation.NodeSelector, made[0].NodeSelector) {
		return fmt.Sprintf("the node selector differs: %s, expected %s",
			text(asked.Claim.Status.Allocation.NodeSelector), text(made[0].NodeSelector))
	}
	return ""
}

// only returns slices with no other devices than those chosen.
func only(slices []*resourceapi.ResourceSlice, chosen sets.Set[structured.DeviceID]) []*resourceapi.ResourceSlice {
	var restricted []*resourceapi.ResourceSlice
	for _, slice := range slices {
		part := *slice
		part.Spec.Devices = nil
		for _, device := range slice.Spec.Devices {
			if chosen.Has(structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, device.Name)) {
				part.Spec.Devices = append(part.Spec.Devices, device)
			}
		}
		restricted = append(restricted, &part)
	}
	return restricted
}

// consume adds to state what result holds, as kube-scheduler does.
func consume(state structured.AllocatedState, result resourceapi.DeviceRequestAllocationResult) {
	if result.ShareID == nil {
		state.AllocatedDevices.Insert(deviceOf(result))
		return
	}
	state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(deviceOf(result), result.ShareID))
	state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(deviceOf(result), result.ConsumedCapacity))
}

func deviceOf(result resourceapi.DeviceRequestAllocationResult) structured.DeviceID {
	return structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
}

// comparable returns results by device, without the random names of shares.
func comparable(results []resourceapi.DeviceRequestAllocationResult) []resourceapi.DeviceRequestAllocationResult {
	sorted := make([]resourceapi.DeviceRequestAllocationResult, 0, len(results))
	for _, result := range results {
		result.ShareID = (*types.UID)(nil)
		sorted = append(sorted, result)
	}
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Device < sorted[j].Device })
	return sorted
}

func text(value any) string {
	written, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(written))
}
