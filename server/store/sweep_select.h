// What ListSweeps asks SQLite. Internal to server/store.
#ifndef AMPD_SERVER_STORE_SWEEP_SELECT_H_
#define AMPD_SERVER_STORE_SWEEP_SELECT_H_

namespace ampd {

// ?1: an id, which the rows' are below; newest first. Columns: id, first, jobs, user, name, create_time of the first
// job. CROSS JOIN: sweeps are gone through, and nothing else.
inline constexpr char kSelectSweeps[] =
    "SELECT s.id, s.first, s.jobs, s.user, i.name, i.create_time FROM sweeps s "
    "CROSS JOIN job_index i ON i.sequence = s.first WHERE s.id < ?1 ORDER BY s.id DESC";
// ?2: of this user.
inline constexpr char kSelectUsersSweeps[] =
    "SELECT s.id, s.first, s.jobs, s.user, i.name, i.create_time FROM sweeps s INDEXED BY sweeps_by_user "
    "CROSS JOIN job_index i ON i.sequence = s.first WHERE s.id < ?1 AND s.user = ?2 ORDER BY s.id DESC";
// Of the jobs with ?2 sequences from ?1 on: each state and how many are in it, from the index alone.
inline constexpr char kSelectStates[] =
    "SELECT state, COUNT(*) FROM jobs INDEXED BY jobs_by_state WHERE state IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11) "
    "AND sequence >= ?1 AND sequence < ?1 + ?2 GROUP BY state";

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_SWEEP_SELECT_H_
