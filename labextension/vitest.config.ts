import { defineConfig } from 'vitest/config';

export default defineConfig({
  esbuild: { jsx: 'transform' },
  test: {
    environment: 'jsdom',
    setupFiles: ['test/setup.ts'],
    include: ['src/**/*.spec.{ts,tsx}'],
    // two cores are what a small CI machine has
    pool: 'threads',
    poolOptions: { threads: { maxThreads: 2 } }
  }
});
