/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-ins for a library: a valid one, one that is too old, one without a function, one without a version,
 * and one that needs another library. */
int fake_version(void);
int fake_twice(int x);
int fake_absent(void);

#ifdef FAKE_VERSION
int fake_version(void)
{
	return FAKE_VERSION;
}
#endif

#ifndef FAKE_LACKS
int fake_twice(int x)
{
#ifdef FAKE_UNRESOLVED
	return 2 * x + fake_absent();
#else
	return 2 * x;
#endif
}
#endif
