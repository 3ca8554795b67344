/* Browsers start no worker from a file on the disk, and the search runs in one. There, run its script in a hidden frame
   that talks to this window as a worker would. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.queue = [];
      this.onmessage = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.addEventListener("load", () => this.start(frame.contentWindow, url), { once: true });
      document.documentElement.append(frame);
    }

    start(inside, url) {
      inside.postMessage = (data) => this.report(data);
      inside.importScripts = (...urls) => urls.reduce((done, next) => done.then(() => this.load(inside, next)), Promise.resolve());
      this.load(inside, url).then(() => {
        this.inside = inside;
        this.queue.splice(0).forEach((data) => this.postMessage(data));
      });
    }

    load(inside, url) {
      return new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        Object.assign(script, { src: url, onload: resolve, onerror: reject });
        inside.document.head.append(script);
      });
    }

    report(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      this.onmessage?.(event);
    }

    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
      else this.queue.push(data);
    }

    terminate() {}
  };
}
