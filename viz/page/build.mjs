// Bundles the page into dist/, which is committed: node build.mjs. With --tests, tests/page/ into build/tests/.
import { build } from 'esbuild';
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
process.chdir(here);

if (process.argv.includes('--tests')) {
  rmSync('build/tests', { recursive: true, force: true });
  await build({
    entryPoints: ['../../tests/page/*.test.ts', '../../tests/page/browser/run.mjs'],
    outbase: '../../tests/page',
    bundle: true,
    platform: 'node',
    format: 'esm',
    outdir: 'build/tests',
    outExtension: { '.js': '.mjs' },
    packages: 'external',
    jsx: 'automatic',
    jsxImportSource: 'preact',
  });
} else {
  const common = { bundle: true, minify: true, write: false, metafile: true, target: ['chrome90', 'firefox90', 'safari15'], charset: 'ascii', legalComments: 'none' };
  const script = await build({
    ...common,
    entryPoints: { page: 'src/main.tsx', plan: 'src/plan/main.tsx' },
    format: 'iife',
    outdir: 'dist',
    jsx: 'automatic',
    jsxImportSource: 'preact',
  });
  const style = await build({ ...common, entryPoints: ['src/style.css'], outdir: 'dist' });
  // Collects the licenses of bundled packages; the bundle includes their texts.
  const packages = new Set();
  for (const input of Object.keys(script.metafile.inputs)) {
    const found = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (found) packages.add(found[1]);
  }
  let licenses = 'This bundle holds parts of these packages, each under its license.\n';
  for (const name of [...packages].sort()) {
    const folder = join('node_modules', name);
    const { version } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    if (!file) throw new Error(`${name} has no license file`);
    licenses += `\n--- ${name} ${version}\n${readFileSync(join(folder, file), 'utf8').trim()}\n`;
  }
  licenses = licenses.replaceAll('*/', '* /');
  mkdirSync('dist', { recursive: true });
  for (const { path, text: code } of script.outputFiles) {
    if (/<\/script/i.test(code + licenses) || code.includes(')embedded"')) throw new Error('the bundle cannot be embedded in a page');
    writeFileSync(path, `/*!\n${licenses}*/\n${code}`);
    console.log(`dist/${basename(path)} ${code.length} bytes`);
  }
  writeFileSync('dist/page.css', style.outputFiles[0].text);
  writeFileSync('dist/LICENSES.txt', licenses);
  console.log(`dist/page.css ${style.outputFiles[0].text.length} bytes`);
}
