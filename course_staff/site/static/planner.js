"use strict";
/* The planner as a page: will this training fit on that card?

   The page computes what `course plan` computes. `planner-data.js`, which the build writes, holds every size of a step as a
   polynomial in the batch b and the length s; here they are evaluated, the model gets all its blocks, and CUDA's caching
   allocator is followed, as course_utils/memory/{shipped,depth,log,allocation,plan}.py do it.

   A link or a form of another page asks by these parameters of the address, all of them optional:
     model          a name, such as qwen2.5-0.5b
     card           a card's name (RTX 4090), or its memory as 24GB
     batch          examples of a micro-batch
     sequence       tokens of an example, a multiple of 32
     optimizer      adamw-foreach, adamw-fused, adamw8bit, adamw4bit, adafactor, sgd
     precision      fp32, autocast, bf16
     checkpointing  1 or 0
     kind           what is trained: all, lora, qlora
     accumulation   micro-batches of an update; more than one only with batch=1 */

(() => {
  // ---------------------------------------------------------------------------------------------- what the build wrote

  const { facts, formulas: packed } = window.coursePlannerData;
  const [FITS, TIGHT, DOES_NOT] = facts.verdicts;
  let formulas; // once they are unpacked

  const unpack = async () => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    formulas = JSON.parse(await new Response(stream).text());
    const { words, labels } = formulas;
    formulas.labels = Array.from({ length: labels.length / 4 }, (_, place) => {
      const [phase, kind, module, operator] = labels.slice(4 * place, 4 * place + 4);
      // What is born and what dies are the same thing where all but the phase is equal.
      return { phase: words[phase], kind: words[kind], module: words[module], thing: `${kind} ${module} ${operator}` };
    });
  };

  // ---------------------------------------------------------------------------------------------- the events of a step

  const nameOfForward = (q) => {
    const regime = q.accumulation > 1 ? "1+1" : Math.min(q.batch, 2); // with one example PyTorch leaves some copies out
    return `forward ${q.kind} ${q.precision} ${Number(q.checkpointing)} ${regime}`;
  };

  const nameOfUpdate = (q) => {
    if (q.optimizer === "sgd") return null; // the forward parts are found with it
    if (q.kind !== "all") return `update lora fp32 ${q.optimizer}`; // adapters are in float32, whatever the rest is
    return `update all ${q.precision === "bf16" ? "bf16" : "fp32"} ${q.optimizer}`;
  };

  /* Sizes in bytes, exactly: some products are larger than a double's whole numbers. */
  const valueOf = (row, b, s) => {
    let sum = 0n;
    for (let i = 0; i < row.length; i += 2) {
      const [powerOfB, powerOfS] = facts.monomials[row[i]];
      sum += BigInt(row[i + 1]) * BigInt(b) ** BigInt(powerOfB) * BigInt(s) ** BigInt(powerOfS);
    }
    return Number(sum / BigInt(facts.denominator));
  };

  /* The events of one part for all blocks: what `Depth.deepen` does. Each is its change in bytes and its label. */
  const eventsOf = (modelName, pieceName, b, s) => {
    const model = formulas.models[modelName];
    const [patternPlace, ...rowPlaces] = model.pieces[pieceName];
    const { events, labels, repeated } = formulas.patterns[patternPlace];
    const sizes = rowPlaces.map((place) => valueOf(model.rows[place], b, s));
    const found = [];
    const take = (begin, end) => {
      for (let place = begin; place < end; place++) {
        const slot = events[place];
        found.push({ change: Math.sign(slot) * sizes[Math.abs(slot) - 1], label: formulas.labels[labels[place]] });
      }
    };
    let start = 0;
    for (const [begin, end] of repeated) {
      take(start, end);
      for (let block = 3; block < model.blocks; block++) take(begin, end);
      start = end;
    }
    take(start, events.length);
    return found;
  };

  /* One step: forward and backward as they are, with the optimizer's state before the inputs and its temporaries before
     whatever dies in the update. */
  const stepOf = (q) => {
    let forward = eventsOf(q.model, nameOfForward(q), q.batch, q.sequence);
    if (q.accumulation > 1) forward = accumulate(forward, q.accumulation);
    const updateName = nameOfUpdate(q);
    if (updateName === null) return forward;
    const update = eventsOf(q.model, updateName, q.batch, q.sequence);
    const state = update.filter((event) => !event.label.phase);
    const temporaries = update.filter((event) => event.label.phase);
    const inputs = forward.findIndex((event) => event.label.phase || event.label.kind === "inputs");
    const head = [...forward.slice(0, inputs), ...state];
    const lastBirth = temporaries.findLastIndex((event) => event.change > 0);
    if (lastBirth < 0) return [...head, ...forward.slice(inputs)];
    const first = forward.findIndex((event) => event.label.phase === "update");
    const rest = forward.slice(first);
    return [
      ...head,
      ...forward.slice(inputs, first),
      ...rest.filter((event) => event.label.phase !== "update"), // deaths at the end of backward, which no birth parted
      ...temporaries.slice(0, lastBirth + 1),
      ...rest.filter((event) => event.label.phase === "update"),
      ...temporaries.slice(lastBirth + 1),
    ];
  };

  /* From two micro-batches to `count`: the second comes again and again. */
  const accumulate = (two, count) => {
    const before = two.filter((event) => !event.label.phase);
    const inputs = before.filter((event) => event.label.kind === "inputs");
    const resident = before.filter((event) => event.label.kind !== "inputs");
    const backward = two.findIndex((event) => event.label.phase === "backward");
    const second = two.findIndex((event, place) => place > backward && event.label.phase === "forward");
    const again = two.slice(second).filter((event) => event.label.phase !== "update");
    const copies = (events, times) => Array.from({ length: times }, () => events).flat();
    return [
      ...resident,
      ...copies(inputs.slice(0, inputs.length / 2), count),
      ...two.slice(before.length, second),
      ...copies(again, count - 2),
      ...two.slice(second),
    ];
  };

  // ---------------------------------------------------------------------------------------------- what a step takes

  const GRAIN = 512;
  const inGrains = (change) => Math.sign(change) * Math.ceil(Math.abs(change) / GRAIN) * GRAIN;

  /* The peak, and the fullest event of each phase: `Log.peak` and `Log.fullest`. */
  const measure = (events) => {
    const found = new Map();
    let total = 0;
    let peak = 0;
    events.forEach(({ change, label }, place) => {
      total += inGrains(change);
      if (!label.phase) {
        peak = total;
        return;
      }
      peak = Math.max(peak, total);
      if (!found.has(label.phase) || total > found.get(label.phase).bytes) found.set(label.phase, { place, bytes: total });
    });
    return { peak, fullest: found };
  };

  const byKind = (events, place) => {
    const sums = new Map();
    for (const { change, label } of events.slice(0, place + 1)) {
      sums.set(label.kind, (sums.get(label.kind) ?? 0) + inGrains(change));
    }
    return Object.fromEntries(Object.keys(facts.kinds).filter((kind) => sums.get(kind)).map((kind) => [kind, sums.get(kind)]));
  };

  /* What CUDA's caching allocator takes from the device: course_utils/memory/allocation.py, block by block. */
  const MIB = 2 ** 20;
  const STEPS = 3; // after the first the segments of the step before are there

  class Cache {
    constructor() {
      this.reserved = 0;
      this.segments = 0;
      this.free = { small: [], large: [] }; // sorted by size, segment and start
    }

    take(bytes) {
      const wanted = Math.max(GRAIN, Math.ceil(bytes / GRAIN) * GRAIN);
      const pool = wanted <= MIB ? "small" : "large";
      const free = this.free[pool];
      const place = placeIn(free, { size: wanted, segment: -1, start: -1 });
      const block = place < free.length ? free.splice(place, 1)[0] : this.newSegment(wanted, pool);
      block.free = false;
      const rest = block.size - wanted;
      if (pool === "small" ? rest >= GRAIN : rest > MIB) {
        const { segment, start, after } = block;
        const split = { size: rest, segment, start: start + wanted, before: block, after, pool };
        if (after) after.before = split;
        block.after = split;
        block.size = wanted;
        this.keep(split);
      }
      return block;
    }

    give(block) {
      const { before, after } = block;
      if (before?.free) {
        this.drop(before);
        block.start = before.start;
        block.size += before.size;
        block.before = before.before;
        if (block.before) block.before.after = block;
      }
      if (after?.free) {
        this.drop(after);
        block.size += after.size;
        block.after = after.after;
        if (block.after) block.after.before = block;
      }
      this.keep(block);
    }

    newSegment(wanted, pool) {
      const size = pool === "small" ? 2 * MIB : wanted < 10 * MIB ? 20 * MIB : Math.ceil(wanted / (2 * MIB)) * 2 * MIB;
      this.reserved += size;
      this.segments += 1;
      return { size, segment: this.segments, start: 0, before: null, after: null, pool };
    }

    keep(block) {
      block.free = true;
      const free = this.free[block.pool];
      free.splice(placeIn(free, block), 0, block);
    }

    drop(block) {
      const free = this.free[block.pool];
      free.splice(placeIn(free, block), 1);
    }
  }

  const placeIn = (sorted, block) => {
    let low = 0;
    let high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      const there = sorted[middle];
      const less = there.size - block.size || there.segment - block.segment || there.start - block.start;
      if (less < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  };

  const reservedFor = (events) => {
    const cache = new Cache();
    const alive = new Map(); // by thing, then by size: blocks, the youngest last
    const resident = events.findIndex((event) => event.label.phase);
    for (let step = 0; step < STEPS; step++) {
      for (let place = step ? resident : 0; place < events.length; place++) {
        const { change, label } = events[place];
        if (!alive.has(label.thing)) alive.set(label.thing, new Map());
        const bySize = alive.get(label.thing);
        const size = Math.abs(change);
        if (!bySize.has(size)) bySize.set(size, []);
        const blocks = bySize.get(size);
        if (change > 0) blocks.push(cache.take(change));
        else if (blocks.length) cache.give(blocks.pop());
      }
    }
    return cache.reserved;
  };

  const needOf = (peak, reserved) => [
    peak + facts.context[0] + facts.workspaces[0],
    Math.trunc(reserved * (1 + facts.above) + facts.context[1] + facts.workspaces[1]),
  ];

  const verdictOf = (need, memory) => (need[1] <= memory ? FITS : need[0] <= memory ? TIGHT : DOES_NOT);

  /* The answer in plain numbers. `q` as the address has it, with numbers as numbers; `q.card` decides the verdict. */
  const answer = (q) => {
    const events = stepOf(q);
    const { peak, fullest } = measure(events);
    const reserved = reservedFor(events);
    const need = needOf(peak, reserved);
    const instants = [...fullest].map(([name, { place, bytes }]) => ({
      name, bytes, by_kind: byKind(events, place), module: events[place].label.module,
    }));
    return { peak, reserved, need, verdict: verdictOf(need, memoryOf(q.card)), instants };
  };

  /* Whether it fits; what the allocator reserves is worked out only where the peak alone does not tell. */
  const fits = (q, memory) => {
    const events = stepOf(q);
    const { peak } = measure(events);
    if (verdictOf(needOf(peak, peak), memory) !== FITS) return false;
    return verdictOf(needOf(peak, reservedFor(events)), memory) === FITS;
  };

  /* The largest batch that fits otherwise unchanged, found by doubling or halving and then between: `plan.most`. */
  const largestBatch = (q) => {
    const memory = memoryOf(q.card);
    const itFits = (batch) => !refusalOf({ ...q, batch }) && fits({ ...q, batch }, memory);
    const limit = facts.largest.batch;
    let low = q.batch;
    let high = q.batch;
    if (itFits(low)) {
      while (high < limit && itFits(Math.min(2 * high, limit))) high = low = Math.min(2 * high, limit);
      if (high >= limit) return limit;
      high = Math.min(2 * high, limit);
    } else {
      let found = false;
      while (low > 1 && !found) {
        low = Math.floor(low / 2);
        found = itFits(low);
        if (!found) high = low;
      }
      if (!found) return null;
    }
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (itFits(middle)) low = middle;
      else high = middle;
    }
    return low;
  };

  // ---------------------------------------------------------------------------------------------- the ladder

  const fieldsOf = (change, q) => {
    const key = [q.optimizer, q.precision, Number(q.checkpointing), q.kind, Math.min(q.batch, 2)].join(" ");
    const [fields] = change.sets.find(([, keys]) => keys.includes(key)) ?? [null];
    return fields && "accumulation" in fields ? { ...fields, accumulation: q.batch * q.accumulation } : fields;
  };

  const together = (q, changes) => {
    const changed = {};
    for (const change of changes) {
      for (const [name, value] of Object.entries(fieldsOf(change, q))) {
        if (name in changed) return null; // two changes of the same
        changed[name] = value;
      }
    }
    return { ...q, ...changed };
  };

  function* combinations(things, count, from = 0) {
    if (!count) {
      yield [];
      return;
    }
    for (let place = from; place < things.length; place++) {
      for (const rest of combinations(things, count - 1, place + 1)) yield [things[place], ...rest];
    }
  }

  const rowOf = (q, base, changes) => {
    const found = answer(q);
    return {
      names: changes.map((change) => change.name),
      level: Math.max(...changes.map((change) => change.level)),
      costs: [...new Set(changes.map((change) => change.costs))].join("; "),
      question: q, peak: found.peak, need: found.need, verdict: found.verdict, saves: base.peak - found.peak,
    };
  };

  /* Changes that make it fit, the least disturbing first, eight at most; where none does, the five that lower it most.
     A generator, so that the page may draw between two steps of it. */
  function* ladder(q, base) {
    const memory = memoryOf(q.card);
    const known = facts.changes.filter((change) => fieldsOf(change, q));
    const singles = [];
    const fitting = [];
    for (const count of [1, 2, 3]) {
      const levels = fitting.map((row) => row.level);
      // Three rows are enough, but for changes that disturb less than any of them.
      const below = fitting.length > 2 ? Math.min(...levels) : 4;
      const enough = fitting.map((row) => row.names);
      for (const changes of combinations(known.filter((change) => change.level < below), count)) {
        const names = changes.map((change) => change.name);
        if (enough.some((some) => some.every((name) => names.includes(name)))) continue;
        const changed = together(q, changes);
        if (changed === null || refusalOf(changed)) continue;
        yield;
        if (fits(changed, memory)) fitting.push(rowOf(changed, base, changes));
        else if (count === 1) singles.push(rowOf(changed, base, changes));
      }
    }
    const order = (row) => facts.changes.findIndex((change) => change.name === row.names[0]);
    fitting.sort((a, b) => a.level - b.level || a.names.length - b.names.length || order(a) - order(b));
    if (fitting.length) return fitting.slice(0, 8);
    return singles.filter((row) => row.saves > 0).sort((a, b) => a.peak - b.peak).slice(0, 5);
  }

  // ---------------------------------------------------------------------------------------------- questions

  const UNITS = { GB: 2 ** 30, GIB: 2 ** 30, MB: MIB, MIB, TB: 2 ** 40, TIB: 2 ** 40 }; // as `course plan` reads them

  const memoryOf = (card) => {
    if (Object.hasOwn(facts.cards, card)) return facts.cards[card];
    const [, number, unit] = /^([\d.]+)\s*([A-Za-z]+)$/.exec(String(card).trim()) ?? [];
    const bytes = Math.trunc(Number(number) * (UNITS[unit?.toUpperCase()] ?? NaN));
    return bytes > 0 ? bytes : null;
  };

  /* Whether `course plan` could answer, whatever this page knows. */
  const isQuestion = (q) => !wrongNumberOf(q) && !tooLong(q);

  const wrongNumberOf = (q) => {
    const wrong = Object.keys(facts.largest).find((name) => !(Number.isInteger(q[name]) && q[name] >= 1));
    if (wrong) return `For the field “${facts.fields[wrong]}” give a whole number from 1 to ${count(facts.largest[wrong])}.`;
    return memoryOf(q.card) === null ? "Give the card's memory in GiB, as a number above 0." : "";
  };

  const tooLong = (q) => {
    const positions = facts.positions[q.model];
    return positions && q.sequence > positions ? `${q.model} has ${count(positions)} positions, too few for ${count(q.sequence)} tokens.` : "";
  };

  /* Why the page has no answer to a question; an empty text where it has one. */
  const refusalOf = (q) => {
    const wrong = wrongNumberOf(q) || tooLong(q);
    if (wrong) return wrong;
    const large = Object.entries(facts.largest).find(([name, most]) => q[name] > most);
    if (large) return `In the field “${facts.fields[large[0]]}” this page knows numbers up to ${count(large[1])}.`;
    const model = formulas.models[q.model];
    if (!model) return `For ${q.model} no formulas were found.`;
    if (q.sequence % facts.unit) {
      const below = q.sequence - (q.sequence % facts.unit);
      const near = [below, below + facts.unit].filter(Boolean).map(count).join(" or ");
      return `Here a length must be a multiple of ${facts.unit} tokens, since some kernels round up to it: take ${near}.`;
    }
    if (q.sequence > model.longest) return `For ${q.model} the formulas are confirmed up to ${count(model.longest)} tokens.`;
    if (q.accumulation > 1 && q.batch > 1) return "This page accumulates micro-batches of one example only.";
    if (q.kind !== "all" && q.precision === "fp32") return "This page knows adapters with autocast and in bfloat16 only.";
    const missing = [nameOfForward(q), nameOfUpdate(q)].find((name) => name !== null && !(name in model.pieces));
    return missing ? `For ${q.model} by this recipe no formulas were found.` : "";
  };

  const flagsOf = (q) => {
    const words = ["--batch", q.batch, "--sequence", q.sequence, "--optimizer", q.optimizer, "--precision", q.precision];
    if (q.accumulation > 1) words.push("--accumulation", q.accumulation);
    if (q.checkpointing) words.push("--checkpointing");
    for (const [name, value] of Object.entries(facts.trained[q.kind])) words.push(`--${name}`, value);
    return words.join(" ");
  };

  const quoted = (word) => (/^[\w./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
  const commandOf = (q, model = q.model) => `course plan ${quoted(model)} --memory ${quoted(q.card)} ${flagsOf(q)}`;

  const alike = (names, value) => names.find((name) => name.toLowerCase() === value.toLowerCase());

  /* The page's name for a model that is called so here or on the Hub. */
  const modelCalled = (value) => {
    const hub = alike(Object.keys(facts.hubs), value);
    return hub ? facts.hubs[hub] : alike(Object.keys(facts.configurations), value);
  };

  /* The question of an address, and sentences about what in it makes no sense. */
  const read = (search) => {
    const q = { ...facts.question };
    const said = [];
    let typed = ""; // a model of which the page gives the command
    const refuse = (name, value) => {
      said.push(`The address asks for ${name} “${value}”, which this page does not know.`);
    };
    for (const [name, value] of new URLSearchParams(search)) {
      if (!Object.hasOwn(q, name)) said.push(`The address has “${name}”, which is no part of a question.`);
      else if (name === "checkpointing") {
        if (["0", "1"].includes(value)) q[name] = value === "1";
        else said.push(`The address says checkpointing “${value}”. Write 1 or 0.`);
      } else if (name === "card") {
        const card = alike(Object.keys(facts.cards), value) ?? value;
        if (memoryOf(card) === null) refuse(name, value);
        else q[name] = card;
      } else if (typeof q[name] === "number") {
        const isCount = /^\d+$/.test(value) && Number(value) >= 1 && Number(value) <= facts.largest[name];
        if (isCount) q[name] = Number(value);
        else refuse(name, value);
      } else {
        const known = name === "model" ? modelCalled(value) : alike(facts.choices[name], value);
        if (known) q[name] = known;
        else refuse(name, value);
        if (name === "model" && !known) typed = value;
      }
    }
    return { question: q, said, typed };
  };

  const searchOf = (q) => {
    const values = Object.entries(q).map(([name, value]) => [name, typeof value === "boolean" ? Number(value) : value]);
    return `?${new URLSearchParams(values)}`;
  };

  // ---------------------------------------------------------------------------------------------- words

  const count = (number) => number.toLocaleString("en-US");

  const bytes = (size) => {
    const [unit, of] = [["GiB", 2 ** 30], ["MiB", MIB], ["KiB", 1024]].find(([, one]) => Math.abs(size) >= one) ?? ["B", 1];
    const exponent = Number((size / of).toExponential(2).split("e")[1]);
    const digits = of === 1 ? 0 : Math.max(0, 2 - exponent);
    const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    return `${(size / of).toLocaleString("en-US", options)}\u00a0${unit}`;
  };

  const signed = (size) => `${size < 0 ? "−" : "+"}${bytes(Math.abs(size))}`;

  const make = (tag, options = {}, ...children) => {
    const { svg, text, ...attributes } = options;
    const one = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
    if (text !== undefined) one.textContent = text;
    one.append(...children);
    return one;
  };

  // ---------------------------------------------------------------------------------------------- the page

  const byId = (name) => document.getElementById(`planner-${name}`);
  const OTHER = "other";
  let question;
  let given = null; // what stands under “Another model”, while the page is about it
  let turn = 0; // which question is being answered; what is left of an older one stops

  const fillChoices = () => {
    const options = (names, words = {}) => names.map((name) => make("option", { value: name, text: words[name] ?? name }));
    byId("model").append(...options(Object.keys(facts.configurations)));
    byId("card").append(
      ...Object.entries(facts.cards).map(([name, memory]) => make("option", { value: name, text: `${name}, ${bytes(memory)}` })),
      make("option", { value: OTHER, text: "another card" }),
    );
    for (const [name, values] of Object.entries(facts.choices)) byId(name).append(...options(values, facts.words));
    for (const [name, most] of Object.entries(facts.largest)) {
      byId(name).max = most;
      byId(name).labels[0].textContent = facts.fields[name];
    }
    byId("sequence").min = byId("sequence").step = facts.unit;
  };

  const showInForm = (q) => {
    for (const name of ["model", ...Object.keys(facts.choices), ...Object.keys(facts.largest)]) byId(name).value = q[name];
    byId("checkpointing").checked = q.checkpointing;
    const named = Object.hasOwn(facts.cards, q.card);
    byId("card").value = named ? q.card : OTHER;
    if (!named) byId("memory").value = memoryOf(q.card) / 2 ** 30;
    byId("memory-field").hidden = named;
  };

  const readForm = () => {
    const numbers = Object.fromEntries(Object.keys(facts.largest).map((name) => [name, Number(byId(name).value)]));
    const card = byId("card").value;
    return {
      ...facts.question, ...numbers,
      model: byId("model").value,
      card: card === OTHER ? `${byId("memory").value}GB` : card,
      optimizer: byId("optimizer").value,
      precision: byId("precision").value,
      kind: byId("kind").value,
      checkpointing: byId("checkpointing").checked,
    };
  };

  const rememberInAddress = (q) => {
    const search = searchOf(q);
    if (search === location.search) return;
    try {
      // The first answer stands in the place of the address that asked for it; going back undoes a change.
      history[turn > 1 ? "pushState" : "replaceState"](null, "", search);
    } catch {
      location.hash = search.slice(1); // some browsers keep the address of a file as it is
    }
  };

  const say = (sentences, ...more) => {
    const parts = [...sentences.map((text) => make("p", { text })), ...more];
    if (byId("said").textContent === parts.map((part) => part.textContent).join("")) return; // an alert is read out again
    byId("said").hidden = !parts.length;
    byId("said").replaceChildren(...parts);
  };

  const ask = (q) => {
    question = q;
    given = null;
    turn += 1;
    rememberInAddress(q);
    byId("command").textContent = isQuestion(q) ? commandOf(q) : "";
    byId("copy").disabled = !isQuestion(q);
    showOther(readOther());
    const refusal = refusalOf(q);
    byId("answer").hidden = Boolean(refusal);
    byId("notes").replaceChildren();
    if (refusal) {
      showVerdict("unknown", isQuestion(q) ? `${refusal} The command below answers the question.` : refusal);
      return;
    }
    const found = answer(q);
    showAnswer(q, found, memoryOf(q.card));
    showLadder(q, found, turn);
  };

  /* What the page cannot answer gets no verdict: it would be another question's. `other` is a model beside the form's. */
  const hold = (q, said, other) => {
    question = q;
    given = other;
    byId("answer").hidden = true;
    byId("notes").replaceChildren();
    byId("command").textContent = commandOf(q, other?.name);
    byId("copy").disabled = false;
    showVerdict("unknown", wrongNumberOf(q) || (other?.name ? "The command below asks about this model." : ""));
    showOther(readOther());
    const button = make("button", { type: "button", text: `Ask what the form says: ${q.model} on ${q.card}` });
    button.addEventListener("click", () => {
      say([]);
      ask(readForm());
      byId("verdict").focus();
    });
    say(said, button);
  };

  const openAddress = () => {
    const { question: q, said, typed } = read(location.search || location.hash.slice(1));
    showInForm(q);
    say([]);
    if (typed) byId("other").value = typed;
    if (said.length) hold(q, said, typed ? readOther() : null);
    else ask(q);
  };

  const showVerdict = (verdict, text) => {
    byId("verdict").textContent = text;
    byId("verdict").dataset.verdict = verdict;
  };

  const showAnswer = (q, found, memory) => {
    const card = Object.hasOwn(facts.cards, q.card) ? `the ${q.card} (${bytes(memory)})` : `a card of ${bytes(memory)}`;
    const says = { [FITS]: "fits on", [TIGHT]: "is tight on", [DOES_NOT]: "does not fit on" }[found.verdict];
    const [least, most] = found.need.map(bytes);
    showVerdict(found.verdict, `${q.model} ${says} ${card}. It needs at least ${least}, and at most ${most}.`);
    const fullest = found.instants.reduce((a, b) => (b.bytes > a.bytes ? b : a));
    const where = fullest.module ? `, in ${fullest.module}` : "";
    byId("fullest").textContent =
      `The fullest instant is in ${fullest.name}${where}: ${bytes(fullest.bytes)}. ` +
      `CUDA's allocator reserves ${bytes(found.reserved)} for the step.`;
    const largest = Object.entries(fullest.by_kind).sort((a, b) => b[1] - a[1]).slice(0, 5);
    byId("largest").replaceChildren(...largest.map(([kind, size]) => make("li", {}, swatch(kind), `${kind}: ${bytes(size)}`)));
    drawBars(found, memory);
    fillTable(found);
    const on = (verdict) => {
      const names = Object.keys(facts.cards).filter((name) => verdictOf(found.need, facts.cards[name]) === verdict);
      return names.join(", ") || "none";
    };
    byId("cards").textContent = `It fits on: ${on(FITS)}. It is tight on: ${on(TIGHT)}.`;
    byId("batch-that-fits").textContent = "";
    byId("notes").replaceChildren(...notesOf(q, found).map((text) => make("p", { text })));
  };

  /* What somebody might not expect of this question. */
  const notesOf = (q, found) => {
    const notes = [];
    if (q.precision !== "fp32" && facts.without_bfloat16.includes(q.card)) {
      notes.push(`The data sheet of the ${q.card} gives no rate for bfloat16. There people take float16: course plan … --precision fp16.`);
    }
    const parameters = (one) => Math.max(...one.instants.map((instant) => instant.by_kind.parameters ?? 0));
    if (q.kind === "qlora" && !refusalOf({ ...q, kind: "lora" })) {
      const [mine, whole] = [found, answer({ ...q, kind: "lora" })].map(parameters);
      if (mine > 0.9 * whole) {
        notes.push(
          "Most weights of this model are in none of the layers that are kept in 4 bits (nn.Linear, and GPT-2's Conv1D): " +
          `parameters take ${bytes(mine)}, and ${bytes(whole)} without QLoRA.`,
        );
      }
    }
    return notes;
  };

  const swatch = (kind) => {
    const color = `background:${facts.kinds[kind]}`;
    return make("span", { class: "planner-swatch", style: color, "aria-hidden": "true" });
  };

  const drawBars = (found, memory) => {
    const width = Math.max(260, byId("bars").clientWidth || 640);
    const [top, row, bar] = [26, 54, 24];
    const most = 1.04 * Math.max(memory, ...found.instants.map((instant) => instant.bytes));
    const x = (size) => (width * size) / most;
    const height = top + row * found.instants.length;
    const numbers = found.instants.map((instant) => `${instant.name} ${bytes(instant.bytes)}`).join(", ");
    const title = `Memory in use at the fullest instant of each phase: ${numbers}. The card has ${bytes(memory)}.`;
    const svg = make("svg", { svg: true, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
    found.instants.forEach((instant, place) => {
      const y = top + row * place;
      let left = 0;
      for (const [kind, size] of Object.entries(instant.by_kind)) {
        const at = { x: x(left), y: y + 20, width: x(size), height: bar };
        const part = make("rect", { svg: true, ...at, fill: facts.kinds[kind] });
        part.append(make("title", { svg: true, text: `${kind}: ${bytes(size)}` }));
        svg.append(part);
        left += size;
      }
    });
    const line = x(memory);
    svg.append(make("line", { svg: true, x1: line, x2: line, y1: 18, y2: height, stroke: facts.line, class: "planner-line" }));
    found.instants.forEach((instant, place) => {
      const text = `${instant.name}: ${bytes(instant.bytes)}`;
      svg.append(make("text", { svg: true, x: 0, y: top + row * place + 14, text }));
    });
    const anchor = line > width / 2 ? "end" : "start";
    svg.append(make("text", { svg: true, x: line, y: 13, "text-anchor": anchor, text: `the card: ${bytes(memory)}` }));
    const kinds = Object.keys(facts.kinds).filter((kind) => found.instants.some((instant) => x(instant.by_kind[kind] ?? 0) >= 1));
    const legend = make("ul", { class: "planner-legend" }, ...kinds.map((kind) => make("li", {}, swatch(kind), kind)));
    byId("bars").replaceChildren(svg, legend);
  };

  const fillTable = (found) => {
    const head = make("tr", {}, make("th", { scope: "col", text: "bytes of" }));
    head.append(...found.instants.map((instant) => make("th", { scope: "col", text: instant.name })));
    const kinds = Object.keys(facts.kinds).filter((kind) => found.instants.some((instant) => instant.by_kind[kind]));
    const line = (name, sizes) => {
      const cells = sizes.map((size) => make("td", { text: count(size) }));
      return make("tr", {}, make("th", { scope: "row", text: name }), ...cells);
    };
    const rows = kinds.map((kind) => line(kind, found.instants.map((instant) => instant.by_kind[kind] ?? 0)));
    rows.push(line("all", found.instants.map((instant) => instant.bytes)));
    byId("numbers").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
  };

  const showLadder = async (q, base, mine) => {
    byId("ladder").hidden = base.verdict === FITS;
    byId("ladder-rows").replaceChildren();
    byId("ladder-head").textContent = "Looking for changes that make it fit …";
    const pause = () => new Promise((resolve) => setTimeout(resolve));
    await pause();
    if (base.verdict !== FITS) {
      const steps = ladder(q, base);
      let step = steps.next();
      while (!step.done) {
        await pause();
        if (mine !== turn) return;
        step = steps.next();
      }
      if (mine !== turn) return;
      fillLadder(step.value);
    }
    if (q.accumulation > 1) return;
    const batch = largestBatch(q);
    const more = batch === facts.largest.batch ? " or more" : "";
    byId("batch-that-fits").textContent = batch
      ? `The largest micro-batch that fits at this length: ${count(batch)}${more}.`
      : "At this length not even one example is sure to fit.";
  };

  const fillLadder = (rows) => {
    byId("others").textContent =
      `course plan also tries: ${facts.others.join(", ")}; so it may find what disturbs less. Adapters are known here with autocast and in bfloat16 only.`;
    const doFit = rows.length && rows[0].verdict === FITS;
    const none = "None of the changes that this page knows makes it fit.";
    byId("ladder-head").textContent = doFit
      ? "What would make it fit, the least disturbing first:"
      : rows.length ? `${none} These lower it most:` : none;
    byId("ladder-table").hidden = !rows.length;
    byId("ladder-rows").replaceChildren(...rows.map((row) => {
      const button = make("button", { type: "button", text: row.names.join(" + ") });
      button.addEventListener("click", () => {
        showInForm(row.question);
        ask(row.question);
        byId("verdict").focus();
      });
      const cells = {
        peak: bytes(row.peak), difference: signed(-row.saves), verdict: row.verdict, costs: row.costs,
        level: `${row.level}. ${facts.levels[row.level]}`,
      };
      const said = Object.entries(cells).map(([name, text]) => make("td", { "data-name": name, text }));
      return make("tr", {}, make("th", { scope: "row" }, button), ...said);
    }));
  };

  // ---------------------------------------------------------------------------------------------- another model

  /* The named model that has the sizes of a `config.json`; what that leaves out is as usual in its family. */
  const namedLike = (config) => {
    const said = (name) => config[name] ?? facts.defaults[config.model_type]?.[name] ?? null;
    const found = Object.entries(facts.configurations).filter(([, known]) =>
      Object.entries(known).every(([name, value]) => name === "head_dim" && config[name] === undefined || said(name) === value));
    const names = found.map(([name]) => name);
    return names.find((name) => facts.positions[name] === config.max_position_embeddings) ?? names[0];
  };

  const offerModel = (name, text) => {
    const button = make("button", { type: "button", text: `Ask about ${name}` });
    button.addEventListener("click", () => {
      byId("model").value = name;
      say([]);
      ask({ ...question, model: name });
      byId("verdict").focus();
    });
    return make("p", { text }, button);
  };

  /* What stands under “Another model”: its name for `course plan`, the page's own for it, or why it is no model. */
  const readOther = () => {
    const text = byId("other").value.trim();
    if (!text) return null;
    if (!text.startsWith("{")) return { name: text, known: modelCalled(text) };
    let config;
    try {
      config = JSON.parse(text);
    } catch (error) {
      return { wrong: `This is no config.json: ${error.message}.` };
    }
    if (typeof config.model_type !== "string") return { wrong: "This names no model_type, so it is no model's config.json." };
    return { name: "config.json", known: namedLike(config) };
  };

  const showOther = (other) => {
    const out = byId("other-said");
    out.replaceChildren();
    if (!other) return;
    const { name, known, wrong } = other;
    if (wrong) {
      out.append(make("p", { text: wrong }));
      return;
    }
    const isFile = name === "config.json";
    const said = isFile ? `These are the sizes of ${known}, which this page knows. ` : "This page knows it. ";
    if (known) out.append(offerModel(known, said));
    if (known && !isFile) return;
    const first = isFile ? `${known ? "Or save" : "Save"} the text as config.json, and type` : "Type";
    const how = make("p", { text: `${first} this where the course is installed:` });
    out.append(how, make("pre", { text: commandOf(question, name) }));
  };

  const aboutOther = ({ known, wrong }) => {
    if (wrong) return "The text under “Another model” is no config.json.";
    if (known) return `Under “Another model” you gave ${known}, which this page knows. Ask about it there.`;
    return "Under “Another model” you gave a model for which this page has no formulas, so it has no verdict.";
  };

  const takeOther = () => {
    const box = byId("other");
    const before = box.getBoundingClientRect().top;
    const other = readOther();
    if (other) hold(readForm(), [aboutOther(other)], other);
    else {
      say([]);
      ask(readForm());
    }
    // The answer above goes or comes; the box stays under the reader's eyes.
    scrollBy({ top: box.getBoundingClientRect().top - before, behavior: "instant" });
  };

  const copy = async () => {
    try {
      await navigator.clipboard.writeText(byId("command").textContent);
      byId("copied").textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(byId("command")); // a page opened from a folder may not write the clipboard
      byId("copied").textContent = "The command is selected; copy it with your keyboard.";
    }
  };

  /* Show the question with its verdict; on a telephone, where both are too tall, the verdict, which names model and card. */
  const land = () => {
    const header = 64; // the site's own, which stays at the top
    const tall = byId("verdict").getBoundingClientRect().bottom - byId("form").getBoundingClientRect().top;
    byId("verdict").scrollIntoView({ block: tall < innerHeight - header ? "nearest" : "center" });
  };

  const start = () => {
    fillChoices();
    byId("tool").hidden = false;
    const asked = location.search; // opening writes the question into the address
    openAddress();
    if (asked) land();
    addEventListener("popstate", openAddress);
    byId("form").addEventListener("submit", (event) => event.preventDefault());
    byId("form").addEventListener("change", ({ target }) => {
      byId("memory-field").hidden = byId("card").value !== OTHER;
      const isAdapter = byId("kind").value !== "all" && byId("precision").value === "fp32";
      if (isAdapter) byId("precision").value = "autocast";
      const said = isAdapter ? ["Adapters are known here with autocast and in bfloat16. The precision is now autocast."] : [];
      if (given && target !== byId("model")) {
        if (given.name && given.name !== "config.json") rememberInAddress({ ...readForm(), model: given.name });
        hold(readForm(), [...said, aboutOther(given)], given);
        return;
      }
      say(said);
      ask(readForm());
    });
    // A number counts while it is typed: the answer below it would else be another question's.
    for (const field of byId("form").querySelectorAll("input[type=number]")) {
      field.addEventListener("input", () => field.value && field.checkValidity() && field.dispatchEvent(new Event("change", { bubbles: true })));
    }
    byId("other").addEventListener("input", takeOther);
    byId("file").addEventListener("change", async () => {
      const [file] = byId("file").files;
      if (!file) return;
      byId("other").value = await file.text();
      takeOther();
    });
    byId("copy").addEventListener("click", copy);
    let drawn = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === drawn || byId("answer").hidden) return;
      drawn = innerWidth;
      drawBars(answer(question), memoryOf(question.card));
    });
  };

  const ready = (async () => {
    if (typeof DecompressionStream === "undefined") {
      byId("without").textContent =
        "This browser is too old to unpack the formulas. Update it, or type the question where the course is installed: " +
        "course plan qwen2.5-0.5b --memory 24GB --batch 8 --sequence 1024";
      return;
    }
    await unpack();
    if (byId("form")) start();
  })();

  window.coursePlanner = { ready, answer, refusalOf, largestBatch, read, searchOf, commandOf,
    ladder: (q) => {
      const steps = ladder(q, answer(q));
      let step = steps.next();
      while (!step.done) step = steps.next();
      return step.value;
    } };
})();
