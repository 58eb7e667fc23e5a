import js from '@eslint/js';
import ts from 'typescript-eslint';

export default ts.config(
  { ignores: ['**/dist/', '**/build/', '**/node_modules/'] },
  js.configs.recommended,
  ...ts.configs.strict,
  {
    rules: {
      // Columns are indexed within bounds that the container checks when it is read.
      '@typescript-eslint/no-non-null-assertion': 'off',
      eqeqeq: 'error',
      'no-console': 'error',
    },
  },
  {
    files: ['**/*.mjs'],
    languageOptions: { globals: { process: 'readonly', console: 'readonly', URL: 'readonly', Buffer: 'readonly', setTimeout: 'readonly', performance: 'readonly' } },
    rules: { 'no-console': 'off' },
  },
  // These run in the browser's page, too.
  { files: ['**/browser/**'], languageOptions: { globals: { document: 'readonly', window: 'readonly', location: 'readonly' } } },
);
