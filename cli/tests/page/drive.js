// Drives a page as a hand does, and writes what it found into the document: `data-found` of the body has an object.
const found = { drawn: {}, problems: [] };
addEventListener('error', event => found.problems.push(event.message));
const screen = () => canvas.getBoundingClientRect();
const wheel = (x, y, options) => canvas.dispatchEvent(new WheelEvent('wheel',
  { clientX: screen().left + x, clientY: screen().top + y, bubbles: true, cancelable: true, ...options }));
const pointer = (kind, x, y) => canvas.dispatchEvent(new PointerEvent('pointer' + kind,
  { clientX: screen().left + x, clientY: screen().top + y, pointerId: 1, bubbles: true }));
const tap = (x, y) => { pointer('down', x, y); pointer('up', x, y); };
const key = (name, target = document) => target.dispatchEvent(new KeyboardEvent('keydown', { key: name, bubbles: true }));
const shown = () => ({ from: view.from, to: view.to, scroll: view.scroll, record: $('record').innerText });
// A pointer of a script has no capture.
canvas.setPointerCapture = () => {};

// How many calls of the canvas one frame takes, and the pixels of each colour.
let calls = 0, strokes = 0;
for (const name of ['fillRect', 'fillText', 'stroke']) {
  const original = paint[name];
  paint[name] = function (...args) { calls += 1; strokes += name === 'stroke'; return original.apply(this, args); };
}
function frame(name) {
  calls = strokes = 0;
  draw();
  const image = paint.getImageData(0, 0, canvas.width, canvas.height).data, pixels = {};
  for (const colour of ['loss', 'hit', 'ran', 'ready', 'blocked']) {
    const [red, green, blue] = colours[colour].match(/[0-9]+/g).map(Number);
    pixels[colour] = 0;
    for (let at = 0; at < image.length; at += 4) {
      pixels[colour] += image[at] === red && image[at + 1] === green && image[at + 2] === blue;
    }
  }
  found.drawn[name] = { calls, arrows: strokes, ...pixels };
}

function zoomAndPan() {
  frame('whole');
  const middle = LABEL + (width - LABEL) / 2, before = shown(), at = view.from + (middle - LABEL) * scale();
  for (let turn = 0; turn < 20; turn++) wheel(middle, 60, { deltaY: -120, ctrlKey: true });
  frame('near');
  const zoomed = shown(), under = view.from + (middle - LABEL) * scale();
  found.zoom = { by: (before.to - before.from) / (zoomed.to - zoomed.from), moved: Math.abs(under - at) / scale() };
  pointer('down', middle, 60);
  pointer('move', middle - 100, 60);
  pointer('up', middle - 100, 60);
  found.panned = (view.from - zoomed.from) / scale();
  key('a');
  found.panned_back = view.from < zoomed.from;
  key('0');
  found.whole = [view.from, view.to - END];
  wheel(middle, 200, { deltaY: 60 });
  draw();
  found.scrolled = [view.scroll, Math.min(60, most())];
  view.scroll = 0;
}

// The run of the thread that waited longest: a click on it names its waker, and the link shows the wake-up.
function clicks() {
  const wake = slowest.find(wake => wake.waker !== 0 && cpuLanes.get(wake.on).from.includes(wake.ran));
  const lane = cpuLanes.get(wake.on), run = lane.runs[lane.from.indexOf(wake.ran)];
  show(run[0] - 2 * (run[1] - run[0]), run[1] + 2 * (run[1] - run[0]));
  draw();
  tap(X((run[0] + run[1]) / 2), Y(lane) + 2);
  found.run = { record: shown().record, woken: nameOf(wake.woken), waker: nameOf(wake.waker), waited: span(wake.ran - wake.time) };
  // At the lane's lower edge there are the events' marks: the one that the run begins with.
  const record = shown().record;
  tap(X(run[0]), Y(lane) + LANE - 3);
  found.mark = shown().record;
  found.marked = String(BigInt(data.start) + BigInt(view.selected.time));
  tap(X((run[0] + run[1]) / 2), Y(lane) + 2);
  found.run.again = shown().record === record;
  [...$('record').querySelectorAll('a')].find(link => link.textContent === nameOf(wake.waker))?.click();
  draw();
  frame('run');
  found.run.shows_wake = view.from <= wake.time && wake.time <= view.to;
  const loss = data.losses.reduce((one, other) => other[1] - other[0] > one[1] - one[0] ? other : one);
  show(loss[0] - 1000, loss[1] + 1000);
  draw();
  frame('loss');
  tap(X((loss[0] + loss[1]) / 2), Y(cpuLanes.get(loss[2] ?? data.cpus[0])) + 2);
  found.loss = { record: shown().record, text: loss[3] };
}

// The longest time in which a thread could run and did not: a click on it says who ran instead.
function waits() {
  const ready = data.waits.filter(wait => wait[3] === 'ready' && wait[4] !== null);
  if (!ready.length) return;
  const wait = ready.reduce((one, other) => other[1] - other[0] > one[1] - one[0] ? other : one), [from, to, tid, , cpu] = wait;
  const lane = threadLanes.get(tid);
  show(from - (to - from), to + (to - from));
  reveal(lane, from);
  draw();
  frame('wait');
  tap(X((from + to) / 2), Y(lane) + LANE / 2);
  const shares = insteadOn(cpu, from, to), [[who, time]] = shares;
  found.wait = { record: shown().record, from, to, cpu, sum: shares.reduce((sum, [, time]) => sum + time, 0), most: who === null ? '' : who ? nameOf(who) : 'idle', time: span(time) };
}

// Lanes that a hand pins, filters and finds again; the CPUs stay where they are.
function lanesOf() {
  const name = lane => lane.title, seen = () => lanes.filter(isSeen).map(name), last = byTime.at(-1), [cpu] = cpuLanes.values();
  const at = Y(cpu);
  view.scroll = most();
  draw();
  found.kept = [Y(cpu) === at, isSeen(cpu)];
  const before = isSeen(last);
  tap(20, Y(last) + 4);
  view.scroll = 0;
  draw();
  found.pinned = [before, isSeen(last), last.row.part === parts.top];
  $('filter').value = 'cat';
  $('filter').dispatchEvent(new Event('input', { bubbles: true }));
  draw();
  found.filtered = parts.rest.rows.filter(row => row.lane).map(row => row.lane.title);
  found.still = seen().filter(title => title.startsWith('CPU ')).length === Math.min(cpuLanes.size, 10);
  $('filter').value = '';
  $('filter').dispatchEvent(new Event('input', { bubbles: true }));
  tap(20, Y(last) + 4);
  draw();
  found.unpinned = view.pinned.size;
}

function searches() {
  key('0');
  const name = data.threads.find(([tid, , name]) => tid && name === 'cat')[2];
  $('search').value = name;
  $('search').dispatchEvent(new Event('input', { bubbles: true }));
  draw();
  frame('search');
  const hits = view.hits.length;
  key('Enter', $('search'));
  key('Enter', $('search'));
  const second = $('found').textContent;
  $('before').click();
  draw();
  found.search = { name, hits, second, back: $('found').textContent, record: shown().record };
  for (let turn = 0; turn < 8; turn++) $('in').click();
  draw();
  const [point] = [data.points[view.hits[0]]];
  found.search.shown = view.from <= point[TIME] && point[TIME] <= view.to;
}

// As many frames as a hand that zooms and pans for a while asks for: the dearest one, and how long all took.
function sweep() {
  key('0');
  const began = performance.now();
  let most = 0, shapes = 0, looked = 0, frames = 0;
  for (let turn = 0; turn < 60; turn++) {
    wheel(LABEL + ((turn * 97) % (width - LABEL)), 60, { deltaY: turn < 30 ? -120 : 120, ctrlKey: true });
    calls = 0;
    draw();
    most = Math.max(most, calls);
    shapes = Math.max(shapes, document.body.dataset.drawn);
    looked = Math.max(looked, document.body.dataset.looked);
    frames += 1;
  }
  found.sweep = { frames, most, shapes, looked, ms: Math.round(performance.now() - began), width: Math.round(width), lanes: lanes.length };
}

try {
  Object.assign(found, { events: data.points.length, wakes: wakes.length, runs: data.runs.length, losses: data.losses.length });
  found.began = $('began').innerText;
  found.lanes = lanes.map(lane => lane.title);
  const recorded = new Set(data.points.map(point => point[TID]));
  found.strangers = data.runs.filter(run => !recorded.has(run[3])).length + data.waits.filter(wait => !recorded.has(wait[2])).length;
  zoomAndPan();
  clicks();
  waits();
  lanesOf();
  searches();
  sweep();
} catch (error) {
  found.problems.push(`${error}: ${error.stack}`);
}
document.body.dataset.found = JSON.stringify(found);
