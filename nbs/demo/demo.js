// A picture is rotated here, in JavaScript; networks in WebAssembly (onnxruntime-web) answer; what they say is drawn. From top to bottom:
// loading, pictures, networks, the dial, digits, vessels, drawing by hand, controls.

const $ = id => document.getElementById(id)
const make = (tag, parent, props = {}) => parent.appendChild(Object.assign(document.createElement(tag), props))
const argmax = a => a.reduce((best, v, i) => v > a[best] ? i : best, 0)
const state = {tab: 'digits', angle: 0, subject: null, query: [0, 0], channel: 0}
const sessions = {}                                   // by file
let ort, facts                                        // the runtime; demo.json: files, networks, example pictures

// ---------------------------------------------------------------------------------------------------------------- loading

function say(sentence, failed = false) {
  $('said').textContent = sentence
  $('status').hidden = !sentence
  $('status').classList.toggle('failed', failed)
  if (failed) $('progress').hidden = true
}

async function bytes(file, onProgress = () => {}) {
  let response
  const gone = new Error(`${file} could not be loaded: check the connection and reload the page.`)
  try { response = await fetch(file) } catch { throw gone }
  if (!response.ok) throw new Error(`${file} could not be loaded: the server says ${response.status}. `
    + (file.startsWith('ort/') ? 'python3 tools/build_demo.py puts it there.' : 'Reload the page.'))
  const parts = []
  try {
    for (const reader = response.body.getReader();;) {
      const {done, value} = await reader.read()
      if (done) break
      parts.push(value)
      onProgress(value.length)
    }
  } catch { throw gone }
  return new Uint8Array(await new Blob(parts).arrayBuffer())
}

async function load(tab) {                            // all files of a tab that are not here yet, with a progress bar
  const files = facts.nets[tab].map(net => net.file).filter(file => !sessions[file])
  const all = ort.env.wasm.wasmBinary ? files : [RUNTIME, ...files]
  if (!all.length) return
  const total = all.reduce((sum, file) => sum + facts.files[file], 0)
  let got = 0
  say(`Loading ${(total / 1e6).toFixed(1)} MB: networks${all.length > files.length ? ' and the runtime that computes them' : ''} …`)
  $('progress').hidden = false
  $('progress').value = 0
  const data = await Promise.all(all.map(file => bytes(file, n => $('progress').value = (got += n) / total)))
  all.forEach((file, i) => {
    if (data[i].length !== facts.files[file])
      throw new Error(`${file} is damaged: it has ${data[i].length} bytes instead of ${facts.files[file]}. Reload the page.`)
    if (file === RUNTIME) ort.env.wasm.wasmBinary = data[i].buffer
  })
  for (const [i, file] of all.entries()) if (file !== RUNTIME) sessions[file] = await open(file, data[i])
  $('progress').hidden = true
  say('')
}

async function open(file, data) {
  try { return await ort.InferenceSession.create(data) }
  catch (e) {
    const why = String(e.message ?? e).split('\n')[0].slice(0, 120)
    throw new Error(`${file} is damaged, or this browser cannot compute it (${why}). Reload the page, or try a newer browser.`)
  }
}

const RUNTIME = 'ort/ort-wasm-simd-threaded.wasm'

async function start() {
  if (typeof WebAssembly !== 'object') return say('This page computes with WebAssembly, which this browser lacks or has switched off.', true)
  say('Loading …')
  facts = JSON.parse(new TextDecoder().decode(await bytes('demo.json')))
  try { ort = await import('./ort/ort.wasm.min.mjs') }
  catch { throw new Error('The runtime is not in ort/: python3 tools/build_demo.py puts it there.') }
  const threads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency || 1) : 1
  Object.assign(ort.env.wasm, {proxy: true, numThreads: threads, wasmPaths: new URL('ort/', location.href).href})
  buildPage()
  await show('digits')
}

// ---------------------------------------------------------------------------------------------------------------- pictures

// As rotate_image of the package: counter-clockwise about the middle, bilinear, zeros from outside, quarter turns exact.
export function rotate(x, channels, n, degrees) {
  const quarter = degrees % 90 === 0, exact = v => quarter ? Math.round(v) : v
  const c = exact(Math.cos(degrees * Math.PI / 180)), s = exact(Math.sin(degrees * Math.PI / 180)), mid = (n - 1) / 2
  const y = new Float32Array(x.length)
  for (let row = 0; row < n; row++) for (let col = 0; col < n; col++) {
    const px = col - mid, py = mid - row                         // x to the right, y up
    const u = c * px + s * py + mid, v = s * px - c * py + mid   // column and row to read at
    const u0 = Math.floor(u), v0 = Math.floor(v), fu = u - u0, fv = v - v0
    for (let k = 0; k < channels; k++) {
      const at = (i, j) => i < 0 || j < 0 || i >= n || j >= n ? 0 : x[(k * n + i) * n + j]
      y[(k * n + row) * n + col] = (1 - fv) * ((1 - fu) * at(v0, u0) + fu * at(v0, u0 + 1))
        + fv * ((1 - fu) * at(v0 + 1, u0) + fu * at(v0 + 1, u0 + 1))
    }
  }
  return y
}

function paint(canvas, n, colour) {                    // colour(row, col) → [r, g, b] in 0…1
  canvas.width = canvas.height = n
  const context = canvas.getContext('2d'), image = context.createImageData(n, n)
  for (let i = 0; i < n * n; i++) {
    const rgb = colour(Math.floor(i / n), i % n)
    for (let k = 0; k < 3; k++) image.data[4 * i + k] = 255 * rgb[k]
    image.data[4 * i + 3] = 255
  }
  context.putImageData(image, 0, 0)
}

const paintPicture = (canvas, x, channels, n) =>
  paint(canvas, n, (i, j) => [0, 1, 2].map(k => x[(Math.min(k, channels - 1) * n + i) * n + j]))

const smooth = (map, n, i, j) => {                     // the n×n map between its points, at (i, j) in units of them
  const clamp = v => Math.min(Math.max(v, 0), n - 1), i0 = Math.floor(clamp(i)), j0 = Math.floor(clamp(j))
  const i1 = Math.min(i0 + 1, n - 1), j1 = Math.min(j0 + 1, n - 1), fi = clamp(i) - i0, fj = clamp(j) - j0
  return (1 - fi) * ((1 - fj) * map[i0 * n + j0] + fj * map[i0 * n + j1]) + fi * ((1 - fj) * map[i1 * n + j0] + fj * map[i1 * n + j1])
}

function hue(re, im, top) {                            // phase is hue, magnitude is brightness
  const h = (Math.atan2(im, re) / Math.PI * 3 + 6) % 6, v = Math.min(Math.hypot(re, im) / top, 1)
  return [5, 3, 1].map(k => v - v * .9 * Math.max(0, Math.min((k + h) % 6, 4 - (k + h) % 6, 1)))
}

function subjects(tab) {                               // the example pictures of a tab, from demo.json
  const {size: n, channels, labels, pixels} = facts.pictures[tab], raw = Uint8Array.from(atob(pixels), c => c.charCodeAt(0))
  const one = channels * n * n
  return Array.from({length: raw.length / one}, (_, i) =>
    subject(tab, Float32Array.from(raw.subarray(i * one, (i + 1) * one), v => v / 255), n, channels, labels?.[i]))
}

const subject = (tab, pixels, n, channels, label = null) =>
  ({tab, pixels, n, channels, label, seen: facts.nets[tab].map(() => new Array(360)), reference: null})

// ---------------------------------------------------------------------------------------------------------------- networks

const softmax = logits => {
  const top = Math.max(...logits), e = logits.map(v => Math.exp(v - top)), sum = e.reduce((a, b) => a + b)
  return e.map(v => v / sum)
}

async function answer(s, degrees) {                    // what every network of the tab says of the rotated picture
  const image = rotate(s.pixels, s.channels, s.n, degrees), outputs = []
  for (const {file} of facts.nets[s.tab])
    outputs.push(await sessions[file].run({images: new ort.Tensor('float32', image.slice(), [1, s.channels, s.n, s.n])}))
  const data = outputs.map(o => Array.from(o.logits.data))
  if (s.tab === 'vessels') return {degrees, image, maps: data.map(d => d.map(v => 1 / (1 + Math.exp(-v))))}
  return {degrees, image, probs: data.map(softmax), fields: outputs[0].fields, attention: outputs[0].attention.data}
}

let wanted = false, running = null, milliseconds = 0
const ask = () => { wanted = true; return running ??= answerAll().catch(e => say(e.message, true)).finally(() => running = null) }

async function answerAll() {                           // one question at a time, always about the newest angle
  while (wanted) {
    wanted = false
    const s = state.subject
    if (!s || s.blank) return
    s.reference ??= await prepare(s)
    const angle = state.angle % 360, began = performance.now()
    const got = angle ? await answer(s, angle) : s.reference
    if (angle) milliseconds += (performance.now() - began - milliseconds) * (milliseconds ? .2 : 1)
    if (s !== state.subject) continue
    window.demo.last = got
    s.seen.forEach((seen, i) => seen[angle] = s.tab === 'digits' ? got.probs[i] : agreement(s, i, got))
    s.tab === 'digits' ? drawDigit(s, got) : drawVessels(s, got)
    drawTraces(s)
    const threads = ort.env.wasm.numThreads
    if (milliseconds) $('speed').textContent = `${(1000 / milliseconds).toFixed(milliseconds > 200 ? 1 : 0)} answers a second, `
      + `of ${facts.nets[s.tab].length} networks each (WebAssembly, ${threads} thread${threads > 1 ? 's' : ''}).`
  }
}

async function prepare(s) {                            // the upright answer, with which the others are compared
  const got = await answer(s, 0)
  if (s.tab === 'digits') {
    s.label ??= argmax(got.probs[0])                   // a drawing: what our network thinks, until the reader says otherwise
    $('truth').value = s.label
    const {energy, n} = streams(got.fields), away = i => Math.hypot(i % n - (n - 1) / 2, Math.floor(i / n) - (n - 1) / 2)
    const i = argmax(energy.map((v, i) => away(i) > .9 * n / 2 ? 0 : v))
    state.query = [(i % n - (n - 1) / 2) * 2 / n, ((n - 1) / 2 - Math.floor(i / n)) * 2 / n]
  }
  return got
}

function streams({data, dims: [, , m, c, n]}) {        // fields (2, 1, m, c, n, n): a map of a stream, means over maps, energy at each point
  const map = (part, order, channel) => data.subarray(((part * m + order) * c + channel) * n * n, ((part * m + order) * c + channel + 1) * n * n)
  const mean = (part, order, channel) => map(part, order, channel).reduce((a, b) => a + b, 0) / (n * n)
  const energy = new Float32Array(n * n)
  data.forEach((v, i) => energy[i % (n * n)] += v * v)
  return {map, mean, energy, n, c}
}

function relativeAngle(a, b) {                         // from one view to another: relative_angle of the package; orders are −1, 0, 1
  const from = streams(a), to = streams(b)
  let re = 0, im = 0, size = [0, 0]
  for (const order of [0, 2]) for (let k = 0; k < from.c; k++) {
    const [ar, ai, br, bi] = [from.mean(0, order, k), from.mean(1, order, k), to.mean(0, order, k), to.mean(1, order, k)]
    re += br * ar + bi * ai                            // to · conj(from), and the conjugate of that for order −1
    im += (bi * ar - br * ai) * (order - 1)
    size = [size[0] + ar * ar + ai * ai, size[1] + br * br + bi * bi]
  }
  return {degrees: Math.atan2(im, re) * 180 / Math.PI, coherence: Math.hypot(re, im) / Math.sqrt(size[0] * size[1])}
}

// ---------------------------------------------------------------------------------------------------------------- the dial

const DISC = 56, INNER = 61, OUTER = 93, KNOB = 102     // radii in the overlay's units
const polar = (degrees, r) => [-r * Math.sin(degrees * Math.PI / 180), -r * Math.cos(degrees * Math.PI / 180)]  // 0° is up
const svg = (tag, attributes) => {
  const e = $('overlay').appendChild(document.createElementNS('http://www.w3.org/2000/svg', tag))
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v)
  return e
}
const dial = {}

function buildDial() {
  for (const r of [INNER, (INNER + OUTER) / 2, OUTER]) svg('circle', {class: 'ring', r})
  for (let a = 0; a < 360; a += 15) {
    const [[x1, y1], [x2, y2]] = [polar(a, OUTER + 2), polar(a, OUTER + (a % 90 ? 4 : 6))]
    svg('line', {class: 'tick', x1, y1, x2, y2})
  }
  dial.traces = ['other', 'plain', 'ours'].map(c => svg('path', {class: `trace ${c}`}))
  dial.needle = svg('path', {class: 'needle', d: `M0 -${DISC - 2} L4 -${DISC - 15} L1 -${DISC - 16} L1 0 A1 1 0 0 1 -1 0 L-1 -${DISC - 16} L-4 -${DISC - 15} Z`})
  dial.point = svg('circle', {class: 'point', r: 4})
  dial.knob = svg('circle', {class: 'knob', r: 7})
}

const showMarks = shown => [dial.needle, dial.point].forEach(e => e.style.display = shown ? '' : 'none')

function drawKnob() {
  const [cx, cy] = polar(state.angle, KNOB)
  dial.knob.setAttribute('cx', cx)
  dial.knob.setAttribute('cy', cy)
  $('angle').value = state.angle
  $('degrees').textContent = `${state.angle}°`
}

function drawTraces(s) {                               // a curve for each network through the angles that were tried
  dial.traces.forEach(path => {
    const colour = path.classList[1], i = facts.nets[s.tab].findIndex(net => net.colour === colour)
    const value = s.tab === 'digits' ? probs => probs[s.label] : v => Math.max(0, (v - .8) / .2)
    const tried = i < 0 ? [] : Object.keys(s.seen[i]).map(Number)
    const gap = (a, b) => (b - a + 360) % 360 > 20
    let d = ''
    if (tried.length) for (let k = 0; k <= tried.length; k++) {
      const a = tried[k % tried.length], [x, y] = polar(a, INNER + (OUTER - INNER) * value(s.seen[i][a]))
      if (k === tried.length && (tried.length < 3 || gap(tried[k - 1], a))) break
      d += `${k === 0 || gap(tried[k - 1], a) ? 'M' : 'L'}${x.toFixed(2)} ${y.toFixed(2)}l0 0`
    }
    path.setAttribute('d', d)
  })
}

function setAngle(degrees) {
  state.angle = degrees === 360 ? 360 : ((Math.round(degrees) % 360) + 360) % 360
  drawKnob()
  const s = state.subject
  if (s) paintPicture($('picture'), rotate(s.pixels, s.channels, s.n, state.angle), s.channels, s.n)
  return ask()
}

// ---------------------------------------------------------------------------------------------------------------- digits

const turned = ([x, y], degrees) => {                  // a point, counter-clockwise, y up
  const c = Math.cos(degrees * Math.PI / 180), s = Math.sin(degrees * Math.PI / 180)
  return [c * x - s * y, s * x + c * y]
}

function drawDigit(s, got) {
  showMarks(true)
  facts.nets.digits.forEach((net, i) => {
    const probs = got.probs[i], answer = argmax(probs), tried = s.seen[i].filter(p => p), right = tried.filter(p => argmax(p) === s.label).length
    for (const e of [net.answer, net.verdict]) {
      e.textContent = answer
      e.className = `answer ink-${net.colour} ${e.title = answer === s.label ? 'right' : 'wrong'}`
    }
    net.score.textContent = `right at ${right} of ${tried.length} angle${tried.length > 1 ? 's' : ''}`
    probs.forEach((p, k) => {
      net.bars[k].style.setProperty('--p', p)
      net.bars[k].nextSibling.textContent = p.toFixed(2)
    })
  })
  document.querySelectorAll('#classes tbody tr').forEach((row, k) => row.className = k === s.label ? 'true' : '')
  const {degrees, coherence} = got.reading = relativeAngle(s.reference.fields, got.fields), whole = (Math.round(degrees) + 360) % 360
  dial.needle.setAttribute('transform', `rotate(${-degrees})`)
  dial.needle.setAttribute('opacity', .35 + .65 * coherence)
  $('reading').innerHTML = `Rotated by ${got.degrees}°; the phases of the features say <b>${whole}°</b> (coherence ${coherence.toFixed(2)}`
    + `${coherence < .8 ? ': do not trust it' : ''}).`
  $('angle').setAttribute('aria-valuetext', `${state.angle} degrees: `
    + facts.nets.digits.map((net, i) => `${net.name} says ${argmax(got.probs[i])}`).join(', '))
  drawFields(s, got)
  drawAttention(got)
}

function drawFields(s, got) {
  const now = streams(got.fields), first = streams(s.reference.fields), size = 96
  for (let m = 0; m < 3; m++) {
    const [re, im] = [0, 1].map(part => now.map(part, m, state.channel)), [re0, im0] = [0, 1].map(part => first.map(part, m, state.channel))
    const top = Math.max(1e-9, .7 * Math.max(...re0.map((v, i) => Math.hypot(v, im0[i]))))   // as bright as for the upright digit
    const at = i => (i + .5) * now.n / size - .5
    paint($(`field${m}`), size, (i, j) => hue(smooth(re, now.n, at(i), at(j)), smooth(im, now.n, at(i), at(j)), top))
  }
}

function drawAttention(got) {                          // of the marked point: between tokens, the mean of the nearest rows
  const tokens = Math.sqrt(got.attention.length), n = Math.sqrt(tokens), size = 96, [x, y] = turned(state.query, got.degrees)
  const row = k => smooth(Float32Array.from({length: tokens}, (_, q) => got.attention[q * tokens + k]), n, (n - 1 - y * n) / 2, (n - 1 + x * n) / 2)
  const map = Float32Array.from({length: tokens}, (_, k) => row(k)), top = Math.max(...map), light = [.21, .78, .56], side = Math.sqrt(got.image.length)
  const canvas = $('attention')
  paint(canvas, size, (i, j) => {
    const t = smooth(map, n, (i + .5) * n / size - .5, (j + .5) * n / size - .5) / top
    const grey = .3 * smooth(got.image, side, (i + .5) * side / size - .5, (j + .5) * side / size - .5)
    return light.map(v => Math.min(1, grey + (t < .6 ? v * t / .6 : v + (1 - v) * (t - .6) / .4)))
  })
  const context = canvas.getContext('2d')
  context.strokeStyle = '#fff'
  context.lineWidth = 1.5
  context.beginPath()
  context.arc((x + 1) * size / 2, (1 - y) * size / 2, 4, 0, 7)
  context.stroke()
  dial.point.setAttribute('cx', x * DISC)
  dial.point.setAttribute('cy', -y * DISC)
}

function setQuery(x, y) {                              // a point of the rotated picture, in units of its half side
  const far = Math.max(1, Math.hypot(x, y) / .95), got = window.demo.last
  if (!got || state.tab !== 'digits') return
  state.query = turned([x / far, y / far], -got.degrees)
  drawAttention(got)
}

// ---------------------------------------------------------------------------------------------------------------- vessels

const inside = (n, i) => Math.hypot(i % n - (n - 1) / 2, Math.floor(i / n) - (n - 1) / 2) <= n / 2
const rotatedReference = (s, i, degrees) => rotate(s.reference.maps[i], 1, s.n, degrees)

function agreement(s, i, got) {                        // correlation, in the disc, of the map with the rotated upright one
  const want = rotatedReference(s, i, got.degrees), k = want.map((_, j) => j).filter(j => inside(s.n, j))
  const mean = a => k.reduce((sum, j) => sum + a[j], 0) / k.length, [ma, mb] = [mean(got.maps[i]), mean(want)]
  const product = (a, m, b, o) => k.reduce((sum, j) => sum + (a[j] - m) * (b[j] - o), 0), a = got.maps[i]
  return product(a, ma, want, mb) / Math.sqrt(product(a, ma, a, ma) * product(want, mb, want, mb))
}

function drawVessels(s, got) {
  facts.nets.vessels.forEach((net, i) => {
    const want = rotatedReference(s, i, got.degrees), map = got.maps[i]
    const apart = map.map((v, j) => inside(s.n, j) ? Math.abs(v - want[j]) : 0), most = Math.max(...apart)
    paint(net.map, s.n, (r, c) => Array(3).fill(map[r * s.n + c]))
    paint(net.difference, s.n, (r, c) => Array(3).fill(Math.min(1, 3 * apart[r * s.n + c])))
    net.most.textContent = most < 1e-4 ? 'no difference, to rounding' : `largest difference ${most.toFixed(2)}`
  })
  $('reading').textContent = ''
}

// ---------------------------------------------------------------------------------------------------------------- drawing by hand

const strokes = []                                     // lists of points, in pixels of the upright picture

function render(points = p => p) {
  const n = facts.pictures.digits.size, canvas = Object.assign(document.createElement('canvas'), {width: n, height: n})
  const context = canvas.getContext('2d', {willReadFrequently: true})
  Object.assign(context, {strokeStyle: '#fff', lineWidth: 2.4, lineCap: 'round', lineJoin: 'round'})
  for (const stroke of strokes) {
    context.beginPath()
    for (const p of [stroke[0], ...stroke]) context.lineTo(...points(p))
    context.stroke()
  }
  const {data} = context.getImageData(0, 0, n, n)
  return Float32Array.from({length: n * n}, (_, i) => data[4 * i + 3] / 255)   // how much of each pixel is covered
}

function finished() {                                  // as MNIST does it: 20 pixels long, its centre of mass in the middle
  const all = strokes.flat(), n = facts.pictures.digits.size
  const [x0, x1, y0, y1] = [0, 0, 1, 1].map((k, i) => Math[i % 2 ? 'max' : 'min'](...all.map(p => p[k])))
  const scale = Math.min(4, 17.6 / Math.max(x1 - x0, y1 - y0, 1)), fit = ([x, y]) => [(x - x0) * scale + 7, (y - y0) * scale + 7]
  const first = render(fit), sum = first.reduce((a, b) => a + b)
  const mean = f => first.reduce((a, v, i) => a + v * (f(i) + .5), 0) / sum, [mx, my] = [mean(i => i % n), mean(i => Math.floor(i / n))]
  return render(p => { const [x, y] = fit(p); return [x - mx + n / 2, y - my + n / 2] })
}

// ---------------------------------------------------------------------------------------------------------------- controls

const isDrawing = () => state.subject?.drawn
let playing = false

function choose(s, button) {
  document.querySelectorAll('#picks button').forEach(b => b.setAttribute('aria-pressed', b === button))
  state.subject = s
  $('drawing').hidden = !s?.drawn
  $('guess').hidden = s?.blank
  $('dial').classList.toggle('drawing', !!s?.drawn)
  $('reading').textContent = ''
  if (s.blank) clearAnswers(s)
  return setAngle(state.angle)
}

function clearAnswers(s) {                              // before the first stroke
  drawTraces(s)
  showMarks(false)
  for (const id of ['field0', 'field1', 'field2', 'attention']) $(id).width = 96   // which clears it
  document.querySelectorAll('#classes tbody tr').forEach(row => row.className = '')
  for (const net of facts.nets.digits) {
    for (const e of [net.answer, net.verdict]) Object.assign(e, {textContent: '–', className: 'answer'})
    net.score.textContent = ''
    for (const bar of net.bars) { bar.style.setProperty('--p', 0); bar.nextSibling.textContent = '' }
  }
}

function showBlank() {
  strokes.length = 0
  const n = facts.pictures.digits.size
  const s = Object.assign(subject('digits', new Float32Array(n * n), n, 1), {drawn: true, blank: true})
  choose(s, $('own'))
}

async function play() {
  playing = !playing
  $('play').textContent = playing ? 'Stop' : 'Rotate once'
  const step = state.tab === 'digits' ? 3 : 15, from = state.angle
  for (let a = step; playing && a <= 360; a += step) {
    const began = performance.now()
    await setAngle(from + a)
    await new Promise(done => setTimeout(done, Math.max(0, 25 - performance.now() + began)))
  }
  playing = false
  $('play').textContent = 'Rotate once'
}

async function show(tab) {
  playing = false
  state.tab = tab
  document.querySelectorAll('[data-tab]').forEach(e => e.hidden = e.dataset.tab !== tab)
  showMarks(tab === 'digits')
  state.subject = null
  try { await load(tab) } catch (e) { return say(e.message, true) }
  if (state.tab !== tab) return
  $('stage').hidden = false
  $('picks').replaceChildren()
  for (const id of ['picks', 'dial']) $(id).classList.toggle('retina', tab === 'vessels')
  milliseconds = 0
  const pictures = facts.examples[tab] ??= subjects(tab)
  const buttons = pictures.map((s, i) => {
    const b = make('button', $('picks'), {type: 'button', ariaLabel: tab === 'digits' ? `Example of a ${s.label}` : `Retina ${i + 1}`})
    paintPicture(make('canvas', b), s.pixels, s.channels, s.n)
    b.onclick = () => choose(s, b)
    return b
  })
  if (tab === 'digits') {
    const own = make('button', $('picks'), {type: 'button', id: 'own', ariaLabel: 'Draw a digit', title: 'Draw a digit', onclick: showBlank})
    own.innerHTML = '<svg viewBox="0 0 24 24"><path d="M4 20l1-5L16 4l4 4L9 19zM13 7l4 4"/></svg>'
  }
  const first = facts.pictures[tab].first ?? 0
  await choose(pictures[first], buttons[first])
}

function buildPage() {
  facts.examples = {}
  buildDial()
  paint($('wheel'), 96, (i, j) => {
    const [x, y] = [j - 47.5, 47.5 - i], r = Math.hypot(x, y)
    return hue(x, y, Math.max(r, 32))
  })
  for (let k = 0; k < 10; k++) make('option', $('truth'), {value: k, textContent: k})
  const head = $('classes').createTHead().insertRow(), body = $('classes').createTBody()
  head.insertCell()
  for (const net of facts.nets.digits) {
    const th = make('th', head, {scope: 'col'})
    make('span', th, {className: 'name', textContent: net.name})
    make('span', th, {className: 'how', textContent: net.how})
    net.answer = make('span', th, {className: 'answer', textContent: ' '})
    net.score = make('span', th, {className: 'score'})
    const verdict = make('div', $('verdicts'))           // on a phone, where the table is below the dial
    make('span', verdict, {className: 'name', textContent: net.name})
    net.verdict = make('span', verdict, {className: 'answer', textContent: ' '})
    net.bars = []
  }
  for (let k = 0; k < 10; k++) {
    const row = body.insertRow()
    make('th', row, {scope: 'row', textContent: k})
    for (const net of facts.nets.digits) {
      const bar = make('div', row.insertCell(), {className: `bar ink-${net.colour}`})
      net.bars.push(make('i', bar))
      make('span', bar)
    }
  }
  for (const net of facts.nets.vessels) {
    const figure = make('figure', $('maps'))
    net.map = make('canvas', figure, {role: 'img', ariaLabel: `Vessels found by the ${net.name}`})
    make('figcaption', figure).innerHTML = `<b class="ink-${net.colour}">${net.name}</b>`
  }
  for (const net of facts.nets.vessels) {
    const figure = make('figure', $('maps'))
    net.difference = make('canvas', figure, {role: 'img', ariaLabel: `Difference for the ${net.name}`})
    net.most = make('figcaption', figure)
  }
  $('facts').textContent = facts.texts.digits
  $('vesselfacts').textContent = facts.texts.vessels
  listen()
}

function listen() {
  const place = (e, box, half) => {                    // of the pointer about the middle of a box, y up, in units of half the box / half
    const r = box.getBoundingClientRect()
    return [(e.clientX - r.left - r.width / 2) * 2 * half / r.width, (r.top + r.height / 2 - e.clientY) * 2 * half / r.height]
  }
  const direction = ([x, y]) => Math.atan2(y, x) * 180 / Math.PI
  let grip = null, stroke = null
  const penAt = p => { const [x, y] = turned(p, -state.angle), n = state.subject.n; return [n / 2 + x / DISC * n / 2, n / 2 - y / DISC * n / 2] }
  $('dial').onpointerdown = e => {
    const p = place(e, $('dial'), 112)
    playing = false
    $('dial').setPointerCapture(e.pointerId)
    if (isDrawing() && Math.hypot(...p) < DISC) strokes.push(stroke = [penAt(p)])
    else grip = direction(p) - state.angle
  }
  $('dial').onpointermove = e => {
    const p = place(e, $('dial'), 112)
    if (stroke) {
      stroke.push(penAt(p))
      paintPicture($('picture'), rotate(render(), 1, state.subject.n, state.angle), 1, state.subject.n)
    } else if (grip !== null) setAngle(direction(p) - grip)
    else if (Math.hypot(...p) < DISC && !isDrawing()) setQuery(p[0] / DISC, p[1] / DISC)
  }
  $('dial').onpointerup = $('dial').onpointercancel = () => {
    if (stroke) choose(Object.assign(subject('digits', finished(), state.subject.n, 1), {drawn: true}), $('own'))
    grip = stroke = null
  }
  $('angle').oninput = e => { playing = false; setAngle(+e.target.value) }
  $('play').onclick = play
  $('clear').onclick = showBlank
  $('truth').onchange = e => { state.subject.label = +e.target.value; ask() }
  $('channel').oninput = e => {
    state.channel = e.target.value - 1
    $('which').textContent = e.target.value
    if (window.demo.last?.fields) drawFields(state.subject, window.demo.last)
  }
  $('attention').onpointermove = $('attention').onpointerdown = e => setQuery(...place(e, $('attention'), 1))
  $('attention').onkeydown = e => {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]}[e.key], got = window.demo.last
    if (!step || !got) return
    e.preventDefault()
    const [x, y] = turned(state.query, got.degrees)
    setQuery(x + step[0] / 16, y + step[1] / 16)
  }
  for (const input of document.querySelectorAll('[name=tab]')) input.onchange = () => show(input.value)
}

window.demo = {state, setAngle, ask, last: null}        // for the console, and for tests
start().catch(e => say(e.message, true))
