/** `Symbol.asyncDispose` where the platform has none: Node before 18.18. A compiled `await using` looks for it there. */

if (Symbol.asyncDispose === undefined) {
  Object.defineProperty(Symbol, "asyncDispose", { value: Symbol("Symbol.asyncDispose") });
}
