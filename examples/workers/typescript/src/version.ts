import type { Version } from './generated/gemps/v1/transfer.js';

export function sameVersion(a: Version, b: Version): boolean {
  return a.incarnation === b.incarnation && a.clock === b.clock;
}

export function showVersion(version: Version | undefined): string {
  return version === undefined ? 'nothing' : `version ${version.clock} of ${version.incarnation.toString(16)}`;
}
