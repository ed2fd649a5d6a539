// Draws the status of a cluster from the master's answers, which the page requests each second. Texts of answers are
// only inserted as text nodes, so they cannot become elements or scripts of the page.
'use strict';

const $ = id => document.getElementById(id);
const PERIOD_MS = 1000;
// Version of the program that serves this page.
const VERSION = document.querySelector('meta[name=version]').content;

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function svg(name, attributes, text) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function bytes(count) {
  if (count === null || count === undefined) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

function short(count) {
  if (count >= 1e6) return `${(count / 1e6).toFixed(count >= 1e7 ? 0 : 1)} M`;
  if (count >= 1e3) return `${(count / 1e3).toFixed(count >= 1e4 ? 0 : 1)} k`;
  return count >= 100 || Number.isInteger(count) ? String(Math.round(count)) : count.toFixed(1);
}

const number = count => count === null || count === undefined ? '–' : count.toLocaleString('en');

function duration(ms) {
  if (ms === null || ms === undefined) return '–';
  if (ms < 1000) return `${ms} ms`;
  const s = ms / 1000;
  if (s < 120) return `${Number.isInteger(s) ? s : s.toFixed(1)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return `${Math.round(s / 3600)} h`;
}

// Fills a table with rows. A cell is a text, [text, class], or an element.
function fill(body, rows, none) {
  const columns = body.closest('table').querySelectorAll('th').length;
  const made = rows.map(({ cells, className }) => {
    const row = element('tr', undefined, className);
    for (const cell of cells) {
      if (cell instanceof Element) { const td = element('td'); td.append(cell); row.append(td); }
      else if (Array.isArray(cell)) row.append(element('td', cell[0], cell[1]));
      else row.append(element('td', cell));
    }
    return row;
  });
  if (made.length === 0) {
    const row = element('tr'), cell = element('td', none, 'none');
    cell.colSpan = columns;
    row.append(cell);
    made.push(row);
  }
  body.replaceChildren(...made);
}

function facts(list, pairs) {
  list.replaceChildren(...pairs.flatMap(([name, value]) => [element('dt', name), element('dd', value)]));
}

function bar(used, reserved, all) {
  const share = part => all ? Math.min(part / all, 1) : 0;
  const made = svg('svg', { class: 'bar', viewBox: '0 0 100 10', preserveAspectRatio: 'none' });
  made.append(svg('rect', { class: 'all', width: 100, height: 10 }));
  made.append(svg('rect', { class: 'reserved', width: share(reserved) * 100, height: 10 }));
  made.append(svg('rect', { class: 'used', width: share(used) * 100, height: 10 }));
  return made;
}

// Returns the end of an axis: the smallest of 1, 2 or 5 times a power of ten that is not below the value.
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map(n => n * power).find(n => n >= value) ?? 10 * power;
}

const SECONDS = 600;
// Seconds between two labels of the time axis. The axis has at most five labels.
const STEPS_S = [5, 10, 15, 30, 60, 120, 150];

function chart(target, history, lines) {
  const width = target.clientWidth || 900, height = target.clientHeight || 170;
  const left = 46, right = 8, top = 18, bottom = 20;
  const times = history.at_ms;
  const last = times.length ? times[times.length - 1] : Date.now();
  const most = Math.max(0, ...lines.flatMap(line => history[line]));
  const full = ceiling(most);
  // While the history is short, the axis is shorter too. Its length is a whole number of seconds.
  const span = Math.ceil(Math.min(SECONDS, Math.max(60, times.length ? (last - times[0]) / 1000 : 0))) * 1000;
  const x = at => left + (width - left - right) * (1 - (last - at) / span);
  const y = value => top + (height - top - bottom) * (1 - value / full);
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const at = y(share * full);
    parts.push(svg('line', { class: 'grid', x1: left, x2: width - right, y1: at, y2: at }));
    parts.push(svg('text', { x: left - 6, y: at + 4, 'text-anchor': 'end' }, short(share * full)));
  }
  const step = STEPS_S.find(s => s * 4000 >= span) * 1000;
  for (let ago = 0; ago <= span; ago += step) {
    const anchor = ago === 0 ? 'end' : x(last - ago) < left + 20 ? 'start' : 'middle';
    parts.push(svg('text', { class: 'time', x: x(last - ago), y: height - 6, 'text-anchor': anchor }, ago === 0 ? 'now' : `−${ago / 1000} s`));
  }
  lines.forEach((line, n) => {
    const values = history[line];
    // The line is interrupted where samples are missing, for example while the master was away.
    const path = times.map((at, i) => {
      const begins = i === 0 || at - times[i - 1] > 5000;
      return `${begins ? 'M' : 'L'}${x(at).toFixed(1)},${y(values[i]).toFixed(1)}`;
    });
    parts.push(svg('path', { class: line, d: path.join('') }));
    const now = values.length ? short(values[values.length - 1]) : '–';
    parts.push(svg('text', { class: line, x: left + 8 + n * 110, y: 12 }, `${line} ${now}`));
  });
  target.setAttribute('viewBox', `0 0 ${width} ${height}`);
  target.replaceChildren(...parts);
  // Shows the values at the pointer, and shows them again after the chart has been redrawn.
  const tell = () => {
    target.querySelectorAll('.cursor, .told').forEach(old => old.remove());
    const pointed = pointer.get(target);
    if (pointed === undefined || !times.length) return;
    const near = times.reduce((best, at, i) => Math.abs(x(at) - pointed) < Math.abs(x(times[best]) - pointed) ? i : best, 0);
    const at = x(times[near]);
    const text = [clock(times[near]), ...lines.map(line => `${line} ${short(history[line][near])}`)].join('   ');
    target.append(svg('line', { class: 'cursor', x1: at, x2: at, y1: top, y2: height - bottom }));
    target.append(svg('text', { class: 'told', x: Math.min(Math.max(at, left + 90), width - right - 90), y: top + 12, 'text-anchor': 'middle' }, text));
  };
  target.onpointermove = event => {
    const box = target.getBoundingClientRect();
    pointer.set(target, (event.clientX - box.left) * width / box.width);
    tell();
  };
  target.onpointerleave = () => { pointer.delete(target); tell(); };
  tell();
}

// Horizontal position of the pointer over each chart.
const pointer = new Map();
const clock = at => new Date(at).toLocaleTimeString();

const HEALTH = {
  no_cluster: ['no cluster', 'bad'], forming: ['forming', 'busy'], degraded: ['degraded', 'bad'], full: ['full', 'bad'],
  repairing: ['repairing', 'busy'], short: ['short of memory', 'busy'], moving: ['moving replicas', 'busy'], whole: ['whole', 'good'],
};
const BAD = new Set(['lost']), BUSY = new Set(['joining', 'waiting', 'draining']);

// Returns the number that exists, followed by the wanted number if that is larger.
const outOf = (there, wanted) => there < wanted ? `${there} of ${wanted}` : String(there);

// Requests and bytes that each memory node had served over TCP, at the latest samples.
const served = new Map();

// Returns requests and bytes per second since the oldest of these samples. A memory node does not see requests over
// shared memory and RDMA.
function traffic(node) {
  const now = { at: performance.now(), requests: node.tcp_requests, bytes: node.tcp_bytes };
  if (now.requests === null) return '–';
  // The counts of a node that has restarted begin at 0, so its earlier samples are dropped.
  const looks = (served.get(node.node) ?? []).filter(look => look.requests <= now.requests).slice(-5);
  served.set(node.node, [...looks, now]);
  const parts = [];
  if (node.attached_tcp > 0 || now.requests > 0) {
    const before = looks[0] ?? now;
    const rate = what => (now[what] - before[what]) / Math.max((now.at - before.at) / 1000, 1);
    parts.push(`${short(rate('requests'))} requests, ${bytes(Math.round(rate('bytes')))}`);
  }
  if (node.attached_shm + node.attached_verbs > 0) parts.push('what passes it by');
  return parts.join(', and ') || 'nothing';
}

function showStatus(status) {
  const [text, kind] = status.view === 0 ? ['no cluster', 'bad']
    : HEALTH[status.health] ?? ['needs a look', 'bad'];
  $('badge').textContent = text;
  $('badge').className = `badge ${kind}`;
  const members = status.memory_nodes.filter(node => node.in_view).length;
  $('summary').textContent = status.view === 0 ? `master ${status.master}`
    : `cluster ${status.cluster}, view ${status.view}, ${members} memory nodes, ${number(status.open_sessions)} sessions`;
  $('problem').hidden = status.reasons.length === 0;
  $('problem').textContent = status.reasons.join('; ');
  fill($('nodes'), status.memory_nodes.map(node => ({
    className: BAD.has(node.state) || (node.in_view && !node.reachable) ? 'bad' : BUSY.has(node.state) ? 'busy' : '',
    cells: [
      node.node,
      node.state.replace('_', ' ') + (node.in_view && !node.reachable ? ', silent' : ''),
      node.control,
      bar(node.used_bytes ?? 0, node.reserved_bytes ?? 0, node.pool_bytes),
      `${bytes(node.used_bytes)} of ${bytes(node.pool_bytes)}, ${bytes(node.reserved_bytes)} reserved`,
      [node.led_bytes === null ? '–' : `${bytes(node.led_bytes_owned)} of ${bytes(node.led_bytes)}`, 'n'],
      [number(node.attached_clients), 'n'],
      traffic(node),
      [number(node.subtables), 'n'],
      [number(node.regions), 'n'],
    ],
  })), 'no memory node has joined');
  fill($('schemes'), status.schemes.map(scheme => ({
    cells: [scheme.redundancy, [number(scheme.regions), 'n'], [bytes(scheme.bytes), 'n']],
  })), 'no region yet');
  facts($('facts'), [
    ['replicas', `of the index ${outOf(status.index_replicas, status.wanted_index_replicas)}, of the data ${outOf(status.data_replicas, status.wanted_data_replicas)}`],
    ['lease', duration(status.lease_ms)],
    ['view in force for', duration(status.view_age_ms)],
    ['epoch', number(status.epoch)],
    ['sessions', `${number(status.open_sessions)} open, ${number(status.expired_sessions)} expired, ${number(status.sessions_opened)} ever`],
  ]);
  showWork(status.work);
  showRepairs(status);
  $('footer').textContent = `FUSEE ${VERSION}, master ${status.master}, at ${new Date().toLocaleTimeString()}`;
}

function showWork(work) {
  fill($('kinds'), work.kinds.filter(kind => kind.operations > 0).map(kind => ({
    cells: [kind.kind, [number(kind.operations), 'n'], [(kind.phases / kind.operations).toFixed(2), 'n']],
  })), 'no session has told of an operation yet');
  const share = (part, all) => all ? `${(100 * part / all).toFixed(1)} %` : '–';
  facts($('work'), [
    ['verbs', number(work.verbs)],
    ['bytes moved by verbs', bytes(work.bytes)],
    ['conflicts', `${number(work.conflicts)} rounds lost to other writers`],
    ['index cache', `${share(work.hints, work.cache_accesses)} of ${number(work.cache_accesses)} accesses used a hint, ${share(work.wrong_hints, work.hints)} of these were wrong`],
  ]);
}

function showRepairs(status) {
  const change = status.change;
  facts($('now'), [
    ['view', change ? `${change.stage}: ${change.subtables} subtables and ${change.regions} regions in the scope, ${change.joining} replicas join` : 'stable'],
    ['missing replicas', number(status.missing_replicas)],
    ['moving', status.rebalancing ? 'replicas move between memory nodes' : 'nothing'],
    ['sessions to be recovered', number(status.expired_sessions)],
    ['sessions recovered', number(status.recoveries)],
  ]);
  fill($('changes'), [...status.last_reconfigurations].reverse().slice(0, 30).map(past => ({
    className: past.under_way ? 'busy' : '',
    cells: [
      past.lost.join(', ') || '–', [number(past.subtables), 'n'], [number(past.joined), 'n'], [number(past.moved), 'n'],
      [duration(past.frozen_ms), 'n'], [duration(past.transforming_ms), 'n'], [duration(past.switched_ms), 'n'],
      past.under_way ? 'under way' : past.lost.length === 0 ? '–' : past.whole_after_ms === null ? 'not yet' : duration(past.whole_after_ms),
    ],
  })), 'none since this master started');
  const scrub = status.scrub;
  facts($('damage'), [
    ['replicas found damaged', `${number(status.damaged_replicas)}, of these ${number(status.repaired_replicas)} written anew`],
    ['scrubber', `${number(scrub.passes)} passes, ${bytes(scrub.bytes)} read`],
    ['lost pairs', number(scrub.lost_pairs)],
  ]);
}

let log = [];

function showEvents() {
  const topic = $('topic').value, warnings = $('warnings').checked;
  const wanted = log.filter(event => (!topic || event.topic === topic) && (!warnings || event.level === 'warn'));
  fill($('log'), wanted.reverse().slice(0, 200).map(event => ({
    className: event.level === 'warn' ? 'warn' : '',
    cells: [event.time.replace('T', ' ').replace('Z', ''), event.topic, event.text],
  })), 'nothing');
}

function takeEvents(events) {
  log = events;
  const known = new Set([...$('topic').options].map(option => option.value));
  const topics = new Set(events.map(event => event.topic));
  for (const topic of [...topics].filter(topic => !known.has(topic)).sort()) {
    const option = element('option', topic);
    option.value = topic;
    $('topic').append(option);
  }
  showEvents();
}

function showHistory(history) {
  chart($('throughput'), history, ['reads', 'writes', 'others']);
  chart($('phases'), history, ['phases']);
  chart($('hits'), history, ['hits']);
  chart($('conflicts'), history, ['conflicts']);
}

async function ask(what) {
  const answer = await fetch(what, { cache: 'no-store' });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

async function look() {
  try {
    const [status, history, events] = await Promise.all(['status.json', 'history.json', 'events.json'].map(ask));
    showStatus(status);
    showHistory(history);
    takeEvents(events);
  } catch (error) {
    $('badge').textContent = 'no answer';
    $('badge').className = 'badge bad';
    $('problem').hidden = false;
    $('problem').textContent = `This master does not answer: ${error.message}`;
  }
  setTimeout(look, PERIOD_MS);
}

// Returns the sum of a metric's samples.
function sum(text, name) {
  const samples = text.split('\n').filter(line => line.startsWith(name) && ' {'.includes(line[name.length]));
  return samples.reduce((all, line) => all + Number(line.slice(line.lastIndexOf(' '))), 0);
}

// Returns the values of a metric's samples, each with its label's value.
function samples(text, name, label) {
  const found = text.matchAll(new RegExp(`^${name}\\{${label}="([^"]*)"\\} (\\d+)`, 'gm'));
  return [...found].map(([, value, count]) => [value, Number(count)]);
}

async function survey() {
  $('survey').disabled = true;
  $('surveyed').textContent = 'counting…';
  try {
    const answer = await fetch('metrics/memory', { cache: 'no-store' });
    const text = await answer.text();
    if (!answer.ok) throw new Error(text);
    const [pairs, values, memory] = ['fusee_pairs', 'fusee_pair_bytes', 'fusee_pair_memory_bytes'].map(name => sum(text, name));
    $('surveyed').textContent = `${number(pairs)} keys, ${bytes(values)} of keys and values, which take ${bytes(memory)}`;
    const uses = samples(text, 'fusee_pool_bytes', 'use').filter(([, used]) => used > 0);
    fill($('uses'), uses.map(([use, used]) => ({ cells: [use.replace('_', ' '), [bytes(used), 'n']] })), 'no pool');
    $('uses').parentNode.hidden = false;
  } catch (error) {
    $('surveyed').textContent = `cannot count: ${error.message}`;
  }
  $('survey').disabled = false;
}

function select(tab) {
  for (const other of document.querySelectorAll('[role=tab]')) {
    other.setAttribute('aria-selected', other === tab);
    $(other.getAttribute('aria-controls')).hidden = other !== tab;
  }
}

// Each tab has an address of its own: /#operations.
function selectNamed() {
  const named = document.getElementById(`tab-${location.hash.slice(1)}`);
  select(named?.getAttribute('role') === 'tab' ? named : $('tab-cluster'));
}

for (const tab of document.querySelectorAll('[role=tab]')) {
  tab.addEventListener('click', () => { history.replaceState(null, '', `#${tab.getAttribute('aria-controls')}`); select(tab); });
}
$('survey').addEventListener('click', survey);
addEventListener('hashchange', selectNamed);
selectNamed();
$('topic').addEventListener('change', showEvents);
$('warnings').addEventListener('change', showEvents);
look();
