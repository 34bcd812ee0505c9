// Prints TypeScript that declares a dashboard of Grafana and each of its panels as Grafana's schema has them, so that a key
// or value that Grafana doesn't know is an error of the compiler.
//   node .ci/tools/grafana.mjs DASHBOARD FOLDER-OF-NODE-MODULES
import fs from 'node:fs'
const [file, modules] = process.argv.slice(2)
const { panels, ...dashboard } = JSON.parse(fs.readFileSync(file, 'utf8'))
const says = v => JSON.stringify(v, null, 1)
const lines = [
  `import type { Dashboard, Panel } from '@grafana/schema'`,
  // The schema's enums are plain text in JSON, and what has a default may be left out.
  `type Text<T> = T extends string ? \`\${T}\` : T extends (infer U)[] ? Text<U>[] : T extends object ? { [K in keyof T]?: Text<T[K]> } : T`,
  `export const dashboard: Text<Omit<Dashboard, 'panels'>> = ${says(dashboard)}`,
]
for (const kind of new Set(panels.map(p => p.type))) {
  const types = `@grafana/schema/dist/types/raw/composable/${kind}/panelcfg/x/types.gen`
  const own = fs.readFileSync(`${modules}/${types}.d.ts`, 'utf8').includes('interface FieldConfig')
  lines.push(`import type * as ${kind} from '${modules}/${types}'`, `type ${kind}Panel = Text<Omit<Panel<unknown, ${own ? `${kind}.FieldConfig` : '{}'}>, 'options'> & { options: ${kind}.Options }>`)
}
panels.forEach((p, i) => lines.push(`export const panel${i}: ${p.type}Panel = ${says(p)}`))
console.log(lines.join('\n'))
