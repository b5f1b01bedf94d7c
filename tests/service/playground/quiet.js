/**
 * Put into a page before its own scripts: knows what the page has begun and not finished (questions, files, frames, timers),
 * so that a test can wait until nothing is left that could still change what is shown.
 */
(() => {
  const frame = window.requestAnimationFrame.bind(window);
  const [later, never] = [window.setTimeout.bind(window), window.clearTimeout.bind(window)];
  const begun = new Map();
  let count = 0;

  /** @returns {() => void} to be called when it is finished */
  const begin = (what, wait = 0) => {
    const key = ++count;
    begun.set(key, { what, wait });
    return () => begun.delete(key);
  };

  const promising = (owner, name) => {
    const given = owner[name];
    owner[name] = function (...all) {
      const end = begin(`${name} ${typeof all[0] === "string" ? all[0] : ""}`);
      const made = given.apply(this, all);
      made.then(end, end); // before whoever waits for it goes on, but in the same turn
      return made;
    };
  };
  promising(window, "fetch");
  promising(Response.prototype, "arrayBuffer");
  promising(Blob.prototype, "arrayBuffer");
  if (isSecureContext) promising(SubtleCrypto.prototype, "digest"); // about:blank is none

  window.requestAnimationFrame = (callback) => {
    const end = begin("a frame");
    return frame((now) => {
      end();
      callback(now);
    });
  };

  const timers = new Map();
  window.setTimeout = (callback, wait = 0, ...given) => {
    const end = begin(`a timer of ${wait} ms`, wait);
    const timer = later(() => {
      timers.delete(timer);
      end();
      callback(...given);
    }, wait);
    timers.set(timer, end);
    return timer;
  };
  window.clearTimeout = (timer) => {
    timers.get(timer)?.();
    timers.delete(timer);
    never(timer);
  };

  /** Resolves when nothing is under way but timers longer than `longest`; rejects after `limit` (both in milliseconds). */
  window.quiet = async (longest, limit) => {
    const until = performance.now() + limit;
    const left = () => [...begun.values()].filter(({ wait }) => wait <= longest);
    do {
      if (performance.now() > until) throw new Error(`still under way: ${left().map(({ what }) => what).join(", ")}`);
      await new Promise((done) => frame(() => later(done)));
    } while (left().length);
  };
})();
