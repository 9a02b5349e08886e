// what jsdom lacks and uPlot asks for when it is loaded
window.matchMedia = (query: string): MediaQueryList => {
  const list: Partial<MediaQueryList> = {
    matches: false,
    media: query,
    addEventListener: () => undefined,
    removeEventListener: () => undefined
  };
  return list as MediaQueryList;
};
