/* Search in pages that are opened as files: browsers start no Worker there, so its script runs in a hidden frame.
   The theme's plugin `offline` would load such a script from another server; its name has to contain "iframe-worker". */
"use strict";
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    #scope;
    #isLoaded;

    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.#scope = frame.contentWindow;
      this.#scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
      this.#scope.importScripts = (...urls) => Promise.all(urls.map((each) => this.#load(each)));
      this.#isLoaded = this.#load(url);
    }

    postMessage(data) {
      this.#isLoaded.then(() => this.#scope.dispatchEvent(new MessageEvent("message", {data})));
    }

    #load(url) {
      return new Promise((resolve, reject) => {
        const script = this.#scope.document.createElement("script");
        Object.assign(script, {src: url, onload: resolve, onerror: reject});
        this.#scope.document.body.append(script);
      });
    }
  };
}
