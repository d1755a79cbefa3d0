# Reads a trace by Perfetto's own types, and counts what it has.
import collections, json, sys
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

trace = pb.Trace()
trace.ParseFromString(open(sys.argv[1], 'rb').read())
timed = [(packet.timestamp, packet.track_event) for packet in trace.packet if packet.HasField('track_event')]
descriptors = [packet.track_descriptor for packet in trace.packet if packet.HasField('track_descriptor')]
tracks = {track.uuid: track for track in descriptors}
threads = {track.uuid: track.thread.tid for track in descriptors if track.HasField('thread')}
unknown = sum(len(UnknownFieldSet(part)) for packet in trace.packet for part in (packet, packet.track_event, packet.track_descriptor))
snapshots = [packet.clock_snapshot for packet in trace.packet if packet.HasField('clock_snapshot')]
unknown += sum(len(UnknownFieldSet(part)) for snapshot in snapshots for part in (snapshot, *snapshot.clocks))
unknown += sum(len(UnknownFieldSet(note)) for _, event in timed for note in event.debug_annotations)

Event = pb.TrackEvent
depth, unbalanced, last, backward = collections.Counter(), 0, 0, 0
for time, event in timed:
    depth[event.track_uuid] += {Event.TYPE_SLICE_BEGIN: 1, Event.TYPE_SLICE_END: -1}.get(event.type, 0)
    unbalanced += depth[event.track_uuid] not in (0, 1)
    backward += time < last
    last = time
instants = [event for _, event in timed if event.type == Event.TYPE_INSTANT]
slices = [event for _, event in timed if event.type == Event.TYPE_SLICE_BEGIN]


def note(event, name):
    return next((note.string_value or note.uint_value for note in event.debug_annotations if note.name == name), None)


# The event at the beginning of an arrow says who is woken: `comm=cat pid=17 prio=120`.
starts = {flow: (time, event) for time, event in timed for flow in event.flow_ids}
ends = {flow: (time, event) for time, event in timed for flow in event.terminating_flow_ids}
elsewhere = sum(f' pid={threads.get(event.track_uuid)} ' not in note(starts[flow][1], 'event') + ' ' for flow, (_, event) in ends.items())
backward += sum(ends[flow][0] < time for flow, (time, _) in starts.items() if flow in ends)
print(json.dumps({
    'clocks': [{clock.clock_id: clock.timestamp for clock in snapshot.clocks} for snapshot in snapshots],
    'trace clocks': [snapshot.primary_trace_clock for snapshot in snapshots],
    'event clocks': list({packet.timestamp_clock_id for packet in trace.packet if packet.HasField('track_event')}),
    'first': timed[0][0],
    'unknown': unknown,
    'unbalanced': unbalanced + sum(depth.values()),
    'backward': backward,
    'without track': sum(event.track_uuid not in tracks for _, event in timed),
    'same track': len(descriptors) - len(tracks),
    'tracks': [track.name for track in descriptors if track.name],
    'threads': list(threads.values()),
    'instants': len(instants),
    'by thread': collections.Counter(threads[event.track_uuid] for event in instants if event.track_uuid in threads),
    'slices': len(slices),
    'flows': len(starts),
    'ends': len(ends.keys() & starts.keys()),
    'ends elsewhere': elsewhere,
    'losses': sum('loss' in event.categories for event in slices),
    'late': sum('late' in event.categories or 'unproven' in event.categories for event in instants),
}))
