/* Published records, as both ends see them: their files, and whether their run answers.
 */
#ifndef DDSTORE_PUBLISHED_H
#define DDSTORE_PUBLISHED_H

#include "store.h"

#define DDSTORE__RECORD_NAME 300 /* room for a record's file name */

void ddstore__record_name(const char *variable, char out[DDSTORE__RECORD_NAME]);

/* Reads and parses a record file. DDSTORE_EKEY: there is none. */
int ddstore__record_read(ddstore__dir *dir, const char *file,
                         ddstore__variable_record *out, ddstore_error *err);

/* How long a sign of life is waited for, until the wait's deadline at most. */
ddstore__patience ddstore__sign_of_life(const ddstore *store,
                                        const ddstore__wait *wait);

/* Whether core rank 0 of the record's run answers. */
int ddstore__record_greet(const ddstore *store, const ddstore__variable_record *record,
                          const ddstore__wait *wait, ddstore_error *err);

#endif
