/** Requests to the server that serves this page. */

const KEY = "millrace-token";

export class Refused extends Error {
  constructor(status, about) {
    super(about.error ?? `the server answered ${status}`);
    this.status = status;
  }
}

/** The token of this browser tab, if the server wants one. */
export const token = () => sessionStorage.getItem(KEY);
export const setToken = (text) => sessionStorage.setItem(KEY, text);

export const get = (path) => asked(path, {});

export const post = (path, body) =>
  asked(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });

async function asked(path, options) {
  const headers = { ...options.headers };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  const answer = await fetch(path, { ...options, headers });
  const about = parsed(await answer.text());
  if (!answer.ok) throw new Refused(answer.status, about);
  return about;
}

/** JSON whose whole numbers beyond 2^53, which JavaScript would round, are kept as text where the browser shows it. */
function parsed(text) {
  try {
    return JSON.parse(text, (_, value, { source } = {}) =>
      (Number.isInteger(value) && !Number.isSafeInteger(value) ? source ?? value : value));
  } catch {
    return {};
  }
}

/** Call a function now and then every so many milliseconds while its page is shown, one call after the other. */
export function repeat(page, milliseconds, work) {
  const next = async () => {
    if (page.left) return;
    try {
      await work();
      page.trouble(null);
    } catch (error) {
      page.trouble(error);
      if (error instanceof Refused && error.status === 403) return; // another attempt would not change it
    }
    if (!page.left) setTimeout(next, document.hidden ? 5 * milliseconds : milliseconds);
  };
  next();
}
