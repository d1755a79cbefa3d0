// Looks at the page of a way as a hand does, and writes what it found into the document: `data-found` of the body has an object.
const found = { problems: [] };
addEventListener('error', event => found.problems.push(event.message));
const pointer = (kind, x, y) => {
  const { left, top } = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent('pointer' + kind, { clientX: left + x, clientY: top + y, pointerId: 1, bubbles: true }));
};
const tap = (x, y) => { pointer('down', x, y); pointer('up', x, y); };
// A pointer of a script has no capture.
canvas.setPointerCapture = () => {};
const titles = () => parts.rest.rows.filter(row => row.lane).map(row => row.lane.title);

// The pixels of each reason in the lanes of the way, and nothing else there has its colour.
function pixels() {
  const counts = {}, image = paint.getImageData(0, 0, canvas.width, canvas.height).data;
  for (const reason of ['ran', 'ready', 'blocked', 'device', 'unknown']) {
    const [red, green, blue] = colours[reason].match(/[0-9]+/g).map(Number);
    counts[reason] = 0;
    for (let at = 0; at < image.length; at += 4) counts[reason] += image[at] === red && image[at + 1] === green && image[at + 2] === blue;
  }
  return counts;
}

try {
  const way = view.way, { leaves } = way;
  found.holes = leaves.filter((leaf, at) => leaf.from !== (at ? leaves[at - 1].to : way.from)).length + (leaves.at(-1).to !== way.to);
  found.title = way.title;
  found.shown = [view.from <= way.from, view.to >= way.to];
  found.ribbon = Number(document.body.dataset.ribbon);
  found.pixels = pixels();
  found.reasons = Object.fromEntries(leaves.map(leaf => [leaf.reason, true]));
  // The threads of the way come first, and the others are folded away until their heading is clicked.
  found.first = titles().length === way.lanes.length && titles()[0] === way.lanes[0].title;
  const heading = parts.rest.rows.findLast(row => row.fold);
  tap(40, rowY(heading) + 8);
  draw();
  found.unfolded = titles().length - way.lanes.length;
  tap(40, rowY(parts.rest.rows.find(row => row.fold)) + 8);
  draw();
  found.folded = titles().length === way.lanes.length;
  // The longest time in which a thread of the way could run and did not.
  const waits = leaves.filter(leaf => leaf.reason === 'ready' && leaf.step.instead.length);
  if (waits.length) {
    const ready = waits.reduce((one, other) => other.to - other.from > one.to - one.from ? other : one);
    show(ready.from - 1000, ready.to + 1000);
    reveal(ready.lane, ready.from);
    draw();
    tap(X((ready.from + ready.to) / 2), Y(ready.lane) + LANE / 2);
    const [most] = ready.step.instead;
    found.ready = { record: $('record').innerText, most: most.idle ? 'idle' : most.unknown ? 'nobody knows' : nameOf(most.tid), time: span(most.ns) };
  }
  // The sums, and the way back to all events.
  summary();
  found.summary = $('record').innerText;
  [...$('record').querySelectorAll('a')].find(link => link.textContent === 'everything, no path').click();
  draw();
  found.without = [view.way === null, Number(document.body.dataset.ribbon), titles().length === byTime.length];
} catch (error) {
  found.problems.push(`${error}: ${error.stack}`);
}
document.body.dataset.found = JSON.stringify(found);
