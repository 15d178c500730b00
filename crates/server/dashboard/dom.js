// Elements from descriptions, and the smallest change that makes the page match a new description.
//
// 1. A page describes itself with `h`. Text only ever becomes text nodes: nothing is parsed as HTML.
// 2. `patch` compares the new children of an element with those that it has. Children with a `key` are found by it, others by their tag.
// 3. What the description did not change is left alone: what a person has typed, opened, selected or focused stays.
// 4. The element with the focus is never moved (that would take the focus away): its siblings are moved around it.

/** @typedef {import('./types/api').Child} Child */
/** @typedef {import('./types/api').VNode} VNode */

const SVG = 'http://www.w3.org/2000/svg';
/** The description that each element was last made to match. @type {WeakMap<Node, VNode>} */
const described = new WeakMap();
/** The events that each element listens to. @type {WeakMap<Element, Set<string>>} */
const listening = new WeakMap();
/** @type {WeakMap<Node, () => string>} */
const ticks = new WeakMap();

/**
 * Describes an element. Special props: `key`; `on` (listeners by event); `tick` (a function of the text, called each second); `styles`
 * (through the CSSOM: the policy of the page forbids style attributes); `made` (called with the new element).
 * @param {string} tag @param {Record<string, any> | null} [props] @param {Child[]} children @returns {VNode}
 */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: flat(children) };
}

/** @param {Child[]} children @returns {(VNode | string)[]} */
function flat(children) {
  /** @type {(VNode | string)[]} */
  const out = [];
  for (const child of children) {
    if (Array.isArray(child)) out.push(...flat(child));
    else if (child === null || child === undefined || child === false) continue;
    else out.push(typeof child === 'object' ? child : String(child));
  }
  return out;
}

/** Makes the children of `parent` match. @param {Element} parent @param {Child[]} children */
export function patch(parent, ...children) {
  patchChildren(parent, flat(children));
}

/** @param {VNode} vnode @returns {Element} */
export function create(vnode) {
  return make(vnode, document.body);
}

/** Writes the text of everything that counts. @param {ParentNode} [root] */
export function tick(root = document) {
  for (const element of root.querySelectorAll('[data-tick]')) {
    const text = ticks.get(element);
    if (text) setText(element, text());
  }
}

/** @param {Element} parent @param {(VNode | string)[]} children */
function patchChildren(parent, children) {
  /** @type {Map<unknown, Element>} */
  const keyed = new Map();
  /** @type {Node[]} */
  const loose = [];
  for (const node of parent.childNodes) {
    const key = described.get(node)?.props.key;
    if (key === undefined) loose.push(node);
    else keyed.set(key, /** @type {Element} */ (node));
  }
  const wanted = children.map((child) => reuse(parent, child, keyed, loose));
  const kept = new Set(wanted);
  for (const node of [...parent.childNodes]) if (!kept.has(node)) parent.removeChild(node);
  place(parent, wanted);
}

/** @param {Element} parent @param {VNode | string} child @param {Map<unknown, Element>} keyed @param {Node[]} loose @returns {Node} */
function reuse(parent, child, keyed, loose) {
  if (typeof child === 'string') {
    const at = loose.findIndex((node) => node.nodeType === Node.TEXT_NODE);
    if (at < 0) return document.createTextNode(child);
    const text = /** @type {Text} */ (loose.splice(at, 1)[0]);
    if (text.data !== child) text.data = child;
    return text;
  }
  const { key } = child.props;
  /** @type {Node | undefined} */
  let old = keyed.get(key);
  if (key === undefined) {
    const at = loose.findIndex((node) => described.get(node)?.tag === child.tag);
    if (at >= 0) old = loose.splice(at, 1)[0];
  } else keyed.delete(key);
  if (!(old instanceof Element) || described.get(old)?.tag !== child.tag) return make(child, parent);
  update(old, child);
  return old;
}

/** @param {VNode} vnode @param {Element} parent @returns {Element} */
function make(vnode, parent) {
  const inSvg = vnode.tag === 'svg' || (parent.namespaceURI === SVG && parent.tagName !== 'foreignObject');
  const element = inSvg ? document.createElementNS(SVG, vnode.tag) : document.createElement(vnode.tag);
  update(element, vnode);
  vnode.props.made?.(element);
  return element;
}

/** @param {Element} element @param {VNode} vnode */
function update(element, vnode) {
  const before = described.get(element)?.props ?? {};
  described.set(element, vnode);
  for (const name of Object.keys(before)) if (!(name in vnode.props)) setProp(element, name, undefined, before[name]);
  for (const [name, value] of Object.entries(vnode.props)) setProp(element, name, value, before[name]);
  if (vnode.props.tick) setText(element, vnode.props.tick());
  else patchChildren(element, vnode.children);
}

/** @param {Element} element @param {string} name @param {any} value @param {any} before */
function setProp(element, name, value, before) {
  if (name === 'key' || name === 'made') return;
  if (name === 'on') return listen(element, value ?? {});
  if (name === 'tick') {
    if (value) ticks.set(element, value);
    element.toggleAttribute('data-tick', Boolean(value));
    return;
  }
  if (value === before) return;
  if (name === 'styles') {
    for (const [property, text] of Object.entries(value ?? {})) /** @type {any} */ (element).style.setProperty(property, text);
  } else if (name === 'value' || name === 'checked' || name === 'disabled' || name === 'indeterminate') {
    /** @type {any} */ (element)[name] = value ?? (name === 'value' ? '' : false);
  } else if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? '' : String(value));
}

/** One real listener for each event, which calls the handler of the newest description. @param {Element} element
 * @param {Record<string, (event: any) => void>} handlers */
function listen(element, handlers) {
  const types = listening.get(element) ?? new Set();
  listening.set(element, types);
  for (const type of Object.keys(handlers)) {
    if (types.has(type)) continue;
    types.add(type);
    element.addEventListener(type, (event) => described.get(element)?.props.on?.[type]?.(event));
  }
}

/** @param {Element} element @param {string} text */
function setText(element, text) {
  const first = element.firstChild;
  if (!first) element.appendChild(document.createTextNode(text));
  else if (first.nodeValue !== text) first.nodeValue = text;
}

/** @param {Element} parent @param {Node[]} wanted */
function place(parent, wanted) {
  const anchor = wanted.find((node) => node.contains(document.activeElement) && document.activeElement !== document.body);
  let cursor = parent.firstChild;
  for (const node of wanted) {
    if (node === anchor) {
      while (cursor && cursor !== anchor) {
        const behind = cursor;
        cursor = cursor.nextSibling;
        parent.appendChild(behind);
      }
    }
    if (node === cursor) cursor = cursor.nextSibling;
    else parent.insertBefore(node, cursor);
  }
}
